"""SeiT's recipes hold what table B.1 of the paper holds, and their networks have the papers' sizes."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import nn

from tilework.augment import (
    Augment,
    CentreCrop,
    CutMix,
    CutMixOrMixup,
    Embed,
    EmbeddingNoise,
    Erase,
    Flip,
    Mixup,
    Normalise,
    RandAugment,
    TokenCrop,
    TokenEda,
    WholeCrop,
)
from tilework.models import Model, Resnet
from tilework.objectives import ClassifyConfig
from tilework.recipes import recipes
from tilework.recipes.seit import pixel_run, token_run
from tilework.runs import Chain, Run
from tilework.train import FitConfig, OptimConfig

COLUMNS = ("deit_b", "seit_vit_b", "seit_vit_b_21k", "seit_vit_b_tokens", "seit_vit_b_pixels")
TABLE: dict[str, tuple[Any, ...]] = {  # table B.1, row by row; a rate is as printed, and worked out below it
    "epochs": (300, 300, 270, 100, 100),
    "batch size": (1024, 1024, 2048, 4096, 512),
    "optimiser": ("adamw", "adamw", "adamw", "adamw", "adamw"),
    "learning rate": (5e-4 * 1024 / 512, 7.5e-4 * 1024 / 512, 0.0015, 1e-5, 5e-4),
    "the same": (0.001, 0.0015, 0.0015, 0.00001, 0.0005),
    "decay": ("cosine", "cosine", "cosine", "constant", "cosine"),
    "weight decay": (0.05, 0.1, 0.02, 0.1, 0.05),
    "warm-up epochs": (5, 5, 5, 5, 5),
    "last rate": (1e-5, 1e-5, 1e-5, 1e-5, 1e-5),  # no row of the table: DeiT's code, and the constant one
    "label smoothing": (0.1, 0.1, 0.1, 0.1, 0.1),
    "dropout": (0, 0, 0, 0, 0),
    "stochastic depth": (0.1, 0.1, 0.1, 0.15, 0.1),
    "gradient clip": (0, 0, 0, 0, 0),
    "cutmix": (1.0, 1.0, 1.0, 1.0, 1.0),
    "mixup": (0.8, 0, 0, 0, 0.8),  # our reading: the alpha, half of the samples having CutMix instead, as in DeiT
    "RandAugment": ((9, 0.5), 0, 0, 0, (9, 0.5)),
    "repeated augmentation": (3, 1, 1, 1, 1),
    "erasing": (0.25, 0, 0, 0, 0),
    "EDA, swap": (0, 0.25, 0, 0, 0),
    "EDA, synonyms": (0, 0.25, 0, 0, 0),
    "Emb-Noise": (0, 0.5, 0.5, 0.5, 0),
    "averaged weights": (0, 0, 0, 0, 0),  # no row of the table: none unless a recipe says so
}


def network(run: Run, classes: int = 1000) -> Model:
    """The network at its full size, without memory: 32-d codes, or pixels."""
    crop = next(step.size for step in run.evaluation if isinstance(step, CentreCrop))
    tokens = any(isinstance(step, Embed) for step in run.evaluation)
    with torch.device("meta"):
        model = run.model.build(32 if tokens else 3, crop, classes)
    assert isinstance(model, Model)
    return model


def last_rate(fit: FitConfig) -> float:
    """Where the schedule ends."""
    return round(fit.optim.lr * fit.schedule.factor(1.0, fit.schedule.warmup_epochs / fit.epochs), 12)


def settings(run: Run) -> dict[str, Any]:
    """What a recipe says in the rows of the table."""
    steps = {type(step): step for step in run.augment}
    assert len(steps) == len(run.augment), "no step stands twice"
    fit, objective = run.fit, run.objective
    assert isinstance(objective, ClassifyConfig)
    either: Any = steps.get(CutMixOrMixup, CutMixOrMixup(steps.get(CutMix, CutMix(0.0)), Mixup(0.0)))
    strength: Any = steps.get(RandAugment)
    edits: Any = steps.get(TokenEda, TokenEda(0.0, 0.0))
    assert either.cutmix.alpha == 1.0
    return {
        "epochs": fit.epochs,
        "batch size": fit.batch,
        "optimiser": fit.optim.name,
        "learning rate": fit.optim.lr,
        "the same": fit.optim.lr,
        "decay": fit.schedule.name,
        "weight decay": fit.optim.weight_decay,
        "warm-up epochs": fit.schedule.warmup_epochs,
        "last rate": last_rate(fit),
        "label smoothing": objective.smoothing,
        "dropout": sum(module.p for module in network(run).modules() if isinstance(module, nn.Dropout)),
        "stochastic depth": round(network(run).get_submodule("blocks.11").drop_path, 12),
        "gradient clip": fit.optim.clip,
        "cutmix": either.cutmix.probability,
        "mixup": either.mixup.alpha * either.mixup.probability,
        "RandAugment": (strength.magnitude, strength.deviation) if strength else 0,
        "repeated augmentation": fit.repeats,
        "erasing": getattr(steps.get(Erase), "probability", 0),
        "EDA, swap": edits.swap,
        "EDA, synonyms": edits.synonym,
        "Emb-Noise": getattr(steps.get(EmbeddingNoise), "probability", 0),
        "averaged weights": fit.ema,
    }


@pytest.mark.parametrize("column", range(5), ids=COLUMNS)
def test_table_b1(column: int) -> None:
    run = recipes[COLUMNS[column]].run
    assert settings(run) == {row: values[column] for row, values in TABLE.items()}
    assert (run.fit.accumulate, run.fit.optim.layer_decay, run.fit.optim.betas) == (1, 1.0, (0.9, 0.999))
    assert (run.fit.schedule.warmup_steps, run.extra) == (0, ())


def names(steps: tuple[Augment, ...]) -> list[str]:
    return [Augment.choices.name_of(type(step)) for step in steps]


def test_pipelines_are_in_the_papers_order() -> None:
    run = recipes["seit_vit_b"].run
    assert run.augment == (
        TokenEda(synonym=0.25, swap=0.25, replaced=0.25, nearest=5, side=0.25),
        TokenCrop((28, 28), area=(0.08, 1.0), aspect=(3 / 4, 4 / 3)),
        CutMix(1.0),
        EmbeddingNoise(0.5, scale=1.0),
    )
    assert run.evaluation == (Embed(), CentreCrop((28, 28)))
    run = recipes["deit_b"].run
    order = ["whole_crop", "flip", "rand_augment", "normalise", "erase", "cutmix_or_mixup"]
    assert names(run.augment) == order
    assert run.augment[0] == WholeCrop((224, 224), (0.08, 1.0), (3 / 4, 4 / 3))
    assert run.augment[-1] == CutMixOrMixup(CutMix(1.0), Mixup(1.0, alpha=0.8), switch=0.5)
    assert run.evaluation == (CentreCrop((224, 224)), Normalise())
    assert run.size == (256, 256)
    assert names(recipes["seit_vit_b_pixels"].run.augment) == [name for name in order if name != "erase"]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("seit_vit_s", 21_952_360),
        ("seit_vit_b", 86_371_048),
        ("seit_vit_b_21k", 86_371_048),
        ("seit_vit_b_tokens", 86_371_048),
        ("seit_vit_b_pixels", 86_567_656),  # timm's vit_base_patch16_224
        ("deit_b", 86_567_656),  # timm's deit_base_patch16_224
        ("deit_s", 22_050_664),  # timm's deit_small_patch16_224
        ("weak_vit_s", 22_050_664),
        ("seit_resnet50", 25_557_032 - 7 * 7 * 3 * 64 + 3 * 3 * 32 * 64),  # torchvision's resnet50 but for the stem
    ],
)
def test_networks_have_the_sizes_of_the_papers(name: str, parameters: int) -> None:
    model = network(recipes[name].run)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    if not isinstance(model, Resnet):
        assert model.grid == (14, 14)  # so that positions stay where they are from tokens to pixels


def test_f16_stem_keeps_the_grid() -> None:
    run = recipes["seit_vit_s_f16"].run
    assert isinstance(run.augment[1], TokenCrop)
    assert run.augment[1].size == (14, 14)
    model = network(run)
    out = model(torch.empty(2, 32, 14, 14, device="meta"))
    assert model.grid == out.grid == (14, 14)
    assert out.tokens.shape == (2, 196, 384)
    assert run.fit == recipes["seit_vit_b"].run.fit


def test_other_backbones_change_nothing_else() -> None:
    base = recipes["seit_vit_b"].run
    for name in ("seit_vit_s", "seit_resnet50"):
        run = recipes[name].run
        assert last_rate(run.fit) == 1e-5
        fit = replace(run.fit, optim=base.fit.optim, schedule=base.fit.schedule)
        assert replace(run, model=base.model, fit=fit) == base
    assert recipes["seit_vit_s"].run.fit.optim.lr == 0.0015
    assert recipes["seit_resnet50"].run.fit.optim == OptimConfig("sgd", lr=0.15, weight_decay=1e-4, momentum=0.9)
    assert replace(recipes["deit_s"].run, model=recipes["deit_b"].run.model) == recipes["deit_b"].run


def test_weak_control_is_crop_and_cutmix_only() -> None:
    run = recipes["weak_vit_s"].run
    assert run.augment == (WholeCrop((224, 224), (0.08, 1.0)), Normalise(), CutMix(1.0))
    assert run.model == recipes["deit_s"].run.model
    assert run.fit == replace(recipes["deit_s"].run.fit, repeats=1)


def test_views_take_the_steps_of_one_view() -> None:
    run, base = recipes["seit_vit_b_views"].run, recipes["seit_vit_b"].run
    images = 1_281_167
    assert run.fit.total_steps(5 * images) == pytest.approx(base.fit.total_steps(images), rel=1e-3)
    assert last_rate(run.fit) == 1e-5
    assert 5 * run.fit.schedule.warmup_epochs == base.fit.schedule.warmup_epochs
    assert replace(run, fit=base.fit) == base


FULL = ["token_eda", "token_crop", "cutmix", "embedding_noise"]


@pytest.mark.parametrize(("switch", "gone"), [("eda", "token_eda"), ("noise", "embedding_noise")])
def test_switches_take_a_step_out(switch: str, gone: str) -> None:
    model = recipes["seit_vit_s"].run.model
    assert names(token_run(model, FitConfig()).augment) == FULL
    without = token_run(model, FitConfig(), **{switch: 0.0})  # type: ignore[arg-type]
    assert names(without.augment) == [name for name in FULL if name != gone]
    half = token_run(model, FitConfig(), **{switch: 0.125})  # type: ignore[arg-type]
    changed = half.augment[FULL.index(gone)]
    assert 0.125 in [getattr(changed, field.name) for field in fields(changed)]


def test_pixel_switches() -> None:
    model = recipes["deit_s"].run.model
    assert not any(isinstance(step, Erase) for step in pixel_run(model, FitConfig(), erase=0.0).augment)
    strong, weak = (pixel_run(model, FitConfig(), strong=strong).augment for strong in (True, False))
    assert {type(step) for step in strong} - {type(step) for step in weak} == {Flip, RandAugment, Erase, CutMixOrMixup}


def test_small_recipes_are_the_large_ones_in_miniature() -> None:
    pairs = {
        "seit_cpu": "seit_vit_b",
        "seit_f16_cpu": "seit_vit_s_f16",
        "seit_resnet_cpu": "seit_resnet50",
        "seit_21k_cpu": "seit_vit_b_21k",
        "seit_tokens_cpu": "seit_vit_b_tokens",
        "seit_pixels_cpu": "seit_vit_b_pixels",
        "deit_cpu": "deit_b",
        "weak_pixel_cpu": "weak_vit_s",
        "seit_views_cpu": "seit_vit_b_views",
        "fine_grained_tokens_cpu": "fine_grained_tokens",
        "fine_grained_pixels_cpu": "fine_grained_pixels",
    }
    for small, large in pairs.items():
        mine, theirs = recipes[small].run, recipes[large].run
        assert names(mine.augment) == names(theirs.augment), small
        assert names(mine.evaluation) == names(theirs.evaluation), small
        assert type(mine.model) is type(theirs.model), small
        assert mine.fit.schedule.name == theirs.fit.schedule.name, small
    for small, large in (("seit_to_tokens_cpu", "seit_21k_to_tokens"), ("seit_to_pixels_cpu", "seit_21k_to_pixels")):
        assert [link.name for link in recipes[small].run.links] == [link.name for link in recipes[large].run.links]
    plain = names(recipes["seit_plain_cpu"].run.augment), names(recipes["plain_pixel_cpu"].run.augment)
    assert plain == (["token_crop"], ["whole_crop", "normalise"])


def test_chains_are_made_of_the_columns() -> None:
    chained = {name: recipes[name].run for name in recipes if isinstance(recipes[name].run, Chain)}
    full = {name: run for name, run in chained.items() if name.startswith("seit_") and not name.endswith("_cpu")}
    found = {name: [link.run for link in chain.links] for name, chain in full.items()}
    pretrain, tokens, pixels = (recipes[f"seit_vit_b_{name}"].run for name in ("21k", "tokens", "pixels"))
    assert found == {
        "seit_21k_to_tokens": [pretrain, tokens],
        "seit_21k_to_pixels": [pretrain, pixels],
        "seit_three_stages": [pretrain, tokens, pixels],
    }
