"""Recipes of 'What makes for good tokenizers' hold what its tables hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tilework.layers.stem_early_conv import EarlyConvStemConfig
from tilework.layers.stem_moto import MotoStemConfig
from tilework.objectives import MocoConfig, TokenPropConfig
from tilework.recipes import recipes
from tilework.recipes.good_tokenizers import PAPER, VARIANTS, by_sgd, supervised
from tilework.runs import Extra

ADDED = (Extra(TokenPropConfig(), 0.001),)


def test_rows_of_tables_2_10_and_12() -> None:
    rows = [
        f"good_{name}{variant}"
        for name, paper in PAPER.items()
        for (variant, _, _), x in zip(VARIANTS, paper, strict=True)
        if x
    ]
    assert len(rows) == 8 + 8 + 7 + 3
    for name in rows:
        assert (recipes[name].paper, list(recipes[name].published)) == ("Good tokenizers", ["top1"])
        run = recipes[name].run
        assert isinstance(run.model.stem, MotoStemConfig) == name.endswith(("_moto", "_both"))
        assert run.extra == (ADDED if name.endswith(("_token_prop", "_both")) else ())
        assert recipes[name].command.startswith(f"tilework train {name} ")


def test_table_17() -> None:
    deit, swin = (supervised(name).fit for name in ("deit_s", "swin_t"))
    assert (deit.epochs, deit.batch, deit.optim.lr, deit.schedule.warmup_epochs) == (300, 1024, 1e-3, 5)
    assert (swin.epochs, swin.batch, swin.optim.lr, swin.schedule.warmup_epochs) == (300, 512, 5e-4, 20)
    assert (deit.ema > 0, deit.repeats, deit.optim.clip, swin.ema, swin.repeats) == (True, 3, 0, 0, 1)
    assert swin.optim.clip > 0
    assert supervised("t2t_vit_14").fit.epochs == 310


@pytest.mark.parametrize("name", [name for name in recipes if name.startswith("good_") and name.endswith("_cpu")])
def test_small_rows_differ_from_the_plain_one_in_what_they_test(name: str) -> None:
    plain, run = recipes["good_plain_cpu"].run, recipes[name].run
    same = replace(run, model=plain.model, extra=(), objective=plain.objective, augment=plain.augment)
    if "swin" in name:  # whose patches learn at the whole rate
        assert run.fit.optim.stem_scale == 1.0
        same = replace(same, fit=replace(same.fit, optim=replace(same.fit.optim, stem_scale=0.1)))
    assert same == plain


def test_sgd_changes_the_optimiser_alone() -> None:
    run = supervised("deit_s")
    assert replace(by_sgd(run), fit=run.fit) == run
    assert by_sgd(run).fit.optim.name == "sgd"


def test_early_convolutions_take_the_place_of_a_block() -> None:
    for name in ("good_deit_s_conv_sgd", "good_deit_s_conv_token_prop_sgd"):
        model: Any = recipes[name].run.model
        assert model == replace(supervised("deit_s").model, stem=EarlyConvStemConfig(), depth=11)  # type: ignore[call-arg]


def test_moco_v3() -> None:
    run = recipes["good_moco_deit_s"].run
    model: Any = run.model
    assert (model.drop_path, model.positions, model.pool) == (0.0, "sincos", "class")
    assert run.objective == MocoConfig(momentum=0.99, temperature=0.2, rise="cosine")
    assert (run.fit.epochs, run.fit.batch, run.fit.schedule.warmup_steps) == (300, 4096, 10_000)
    assert (run.fit.optim.name, run.fit.optim.lr, run.fit.optim.weight_decay) == ("adamw", 1.5e-4 * 4096 / 256, 0.1)


def test_sizes_of_stems() -> None:
    """Parameters of DeiT-S, beside table 1's 22.1, 22.3, 22.3 and 25.7 million; intra: four windows of 96 channels."""
    with torch.device("meta"):
        found = {
            name: sum(p.numel() for p in recipes[name].run.model.build(3, (224, 224), 1000).parameters())
            for name in ("good_deit_s", "good_deit_s_intra", "good_deit_s_intra_local_inter", "good_deit_s_moto")
        }
    assert found["good_deit_s"] == 22_050_664
    assert found["good_deit_s_intra"] == 22_295_272
    windows = 96 * 3 * (4**2 + 8**2 + 16**2 + 32**2)
    assert found["good_deit_s_intra"] - found["good_deit_s"] == windows + 384 * 384 + 384 - 384 * 768
    assert found["good_deit_s_moto"] - found["good_deit_s"] == 448 + 2 * 34 + 136 + 8 + 256 + 51  # the last folds back
