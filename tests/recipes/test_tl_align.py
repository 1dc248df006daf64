"""Recipes of TL-Align: table 1 of the supplement, and rows that differ in one thing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tilework.augment import BlockMix, CutMix, CutMixOrMixup, Erase, Mixup, PatchCutMix, RandomMix
from tilework.models import Model, Vit, preset
from tilework.models.model import stem_of
from tilework.objectives import ClassifyConfig, TlAlignConfig, TlAlignTokenLabelConfig, TransMixConfig
from tilework.recipes import catalogue, recipes

SWITCHED = CutMixOrMixup(CutMix(1.0), Mixup(1.0, alpha=0.8), switch=0.8)
# epochs, warm-up, lr, weight decay, averaged, mixture, erasing; TransMix's: its authors' deit_s_transmix.yaml
TABLE: dict[str, tuple[Any, ...]] = {
    "deit_s_unmixed": (300, 5, 0.001, 0.05, 0.0, None, True),
    "deit_s_averaged": (310, 20, 0.001, 0.03, 0.99996, SWITCHED, False),
    "deit_s_averaged_trans_mix": (310, 20, 0.001, 0.03, 0.99996, SWITCHED, False),
    "deit_s_cutmix": (300, 5, 0.001, 0.05, 0.0, PatchCutMix(16, even=True), True),
    "deit_s_trans_mix": (300, 5, 0.001, 0.05, 0.0, PatchCutMix(16, even=True), True),
    "deit_s_tl_align": (300, 5, 0.001, 0.05, 0.0, PatchCutMix(16, even=True), True),
}
RULES = {"trans_mix": TransMixConfig(), "tl_align": TlAlignConfig()}


@pytest.mark.parametrize("name", TABLE)
def test_table_1(name: str) -> None:
    run = recipes[name].run
    fit, (epochs, warmup, lr, decay, ema, mixing, erase) = run.fit, TABLE[name]
    batch, repeats = (256, 1) if "averaged" in name else (1024, 3)
    assert (fit.epochs, fit.batch, fit.schedule.warmup_epochs, fit.repeats) == (epochs, batch, warmup, repeats)
    assert fit.optim.lr * fit.schedule.factor(1.0, warmup / epochs) == pytest.approx(1e-5)
    assert (fit.optim.lr, fit.optim.weight_decay, fit.ema) == (pytest.approx(lr), decay, ema)
    assert any(isinstance(step, Erase) for step in run.augment) == erase
    assert (run.augment[-1] == mixing) == (mixing is not None)
    assert run.objective == next((rule for end, rule in RULES.items() if name.endswith(end)), ClassifyConfig())
    assert run.model == recipes["deit_s"].run.model
    side = 248 if "averaged" in name else 256  # TransMix's code sees 0.9 of a side, DeiT's 0.875
    assert run.size == (side, side)


def test_row_2_is_deit_s() -> None:
    row = recipes["deit_s"].run
    assert row.augment[-1] == replace(SWITCHED, switch=0.5)
    assert replace(row, augment=row.augment[:-1]) == recipes["deit_s_unmixed"].run


@pytest.mark.parametrize(
    ("base", "others"),
    [
        ("deit_s_averaged", {"deit_s_averaged_trans_mix": TransMixConfig()}),
        ("deit_s_cutmix", {"deit_s_trans_mix": TransMixConfig(), "deit_s_tl_align": TlAlignConfig()}),
        ("deit_s_random", {"deit_s_random_tl_align": TlAlignConfig()}),
        ("deit_s_blocks", {"deit_s_blocks_tl_align": TlAlignConfig()}),
        ("cutmix_cpu", {"trans_mix_cpu": TransMixConfig(), "tl_align_cpu": TlAlignConfig()}),
        ("random_mix_cpu", {"tl_align_random_cpu": TlAlignConfig()}),
        ("block_mix_cpu", {"tl_align_block_cpu": TlAlignConfig()}),
        ("token_cutmix_cpu", {"token_trans_mix_cpu": TransMixConfig(), "token_tl_align_cpu": TlAlignConfig()}),
        ("lv_vit_s", {"lv_vit_s_tl_align": TlAlignTokenLabelConfig()}),
    ],
)
def test_rows_differ_in_the_label_rule_alone(base: str, others: dict[str, Any]) -> None:
    for name, rule in others.items():
        assert recipes[name].run == replace(recipes[base].run, objective=rule)


def test_mixtures_differ_in_nothing_else() -> None:
    for names, even in (  # small forms were measured with boxes that are only rounded
        (("deit_s_cutmix", "deit_s_random", "deit_s_blocks"), True),
        (("cutmix_cpu", "random_mix_cpu", "block_mix_cpu"), False),
    ):
        box, random, blocks = (recipes[name].run for name in names)
        assert [run.augment[-1] for run in (random, blocks)] == [RandomMix(16), BlockMix(16)]
        assert box.augment[-1] == PatchCutMix(16, even=even)
        assert len({replace(run, augment=run.augment[:-1]) for run in (box, random, blocks)}) == 1


@pytest.mark.parametrize(
    "name",
    [
        recipe.name
        for recipe in catalogue
        if any(isinstance(step, PatchCutMix | RandomMix | BlockMix) for step in recipe.runs[0].augment)
    ],
)
def test_patches_are_tokens(name: str) -> None:
    """What one token of the stem covers is what the mixture calls a patch."""
    run: Any = recipes[name].run
    side = run.evaluation[-1].size[0] if hasattr(run.evaluation[-1], "size") else run.evaluation[0].size[0]
    with torch.device("meta"):
        model = run.model.build(3, (side, side), 10)
    assert isinstance(model, Model)
    patch = next(s.patch for s in run.augment if isinstance(s, PatchCutMix | RandomMix | BlockMix))
    assert stem_of(model).grid == (side // patch, side // patch)


def test_swin_and_pvt_keep_their_own_schedules() -> None:
    deit = recipes["deit_s_tl_align"].run
    for name, warmup, clip in (("swin_t", 20, 5.0), ("swin_s", 20, 5.0), ("pvt_small", 5, 0.0), ("pvt_medium", 5, 0.0)):
        run = recipes[f"{name}_tl_align"].run
        assert (run.model, run.objective) == (preset(name), TlAlignConfig())
        assert run.augment == (*deit.augment[:-1], PatchCutMix(4, even=True))
        assert (run.fit.epochs, run.fit.batch, run.fit.repeats) == (300, 1024, 1)
        assert (run.fit.optim.lr, run.fit.optim.clip, run.fit.schedule.warmup_epochs) == (0.001, clip, warmup)
        assert run.fit.schedule.floor * run.fit.optim.lr == pytest.approx(1e-5)


def test_sizes() -> None:
    for name, width in (("deit_ti_tl_align", 192), ("deit_s_tl_align", 384), ("deit_b_tl_align", 768)):
        assert recipes[name].run.model.width == width  # type: ignore[attr-defined]
    with torch.device("meta"):
        for name, channels, side in (("tl_align_cpu", 3, 112), ("token_tl_align_cpu", 32, 14)):
            model = recipes[name].run.model.build(channels, (side, side), 10)
            assert isinstance(model, Vit)
            assert model.config.pool == "class"
            assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(0.9, abs=0.05)
