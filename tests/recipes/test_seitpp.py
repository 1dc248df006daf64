"""SeiT++'s recipes hold what the paper and its published code say, and tools reach the parts that use them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tilework.augment import (
    Augment,
    CentreCrop,
    CutMix,
    CutMixOrMixup,
    Embed,
    LikePixels,
    Mixup,
    RandomResizedCrop,
    Requantise,
    TokenAdapt,
    TokenColour,
    TokenCrop,
    TokenEda,
    TokenGeometry,
)
from tilework.augment.affine import Geometry
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError, InputError
from tilework.layers.stems import TokenF16StemConfig, TokenPatchStemConfig, TokenStemConfig
from tilework.models import Model, VitConfig
from tilework.objectives import ClassifyCodes, ClassifyCodesConfig, MaskedConfig
from tilework.recipes import recipes
from tilework.runs import Artefacts, Run, equip
from tilework.runs.build import build_objective
from tilework.tokenizers import DecodeEncode, VitVqConfig, save_tokenizer
from tilework.train.optim import build_optimiser

IMAGENET = 1_281_167
ADAPTED = ("seitpp_vit_b", "seitpp_vit_s", "seitpp_vit_s_f16", "token_adapt_vit_s", "decode_encode_vit_s")
FINE_TUNED = ("mtm_tuned_vit_b", "seitpp_tuned_vit_b")
PRE_TRAINED = ("mtm_vit_b", "mtm_adapt_vit_b")


def names(steps: tuple[Augment, ...]) -> list[str]:
    return [Augment.choices.name_of(type(step)) for step in steps]


def step(run: Run, kind: type[Augment]) -> Any:
    (found,) = [one for one in run.augment if isinstance(one, kind)]
    return found


def network(run: Run, classes: int = 1000) -> Model:
    """At its full size, without memory: 32-d codes."""
    crop = next(one.size for one in run.evaluation if isinstance(one, CentreCrop))
    with torch.device("meta"):
        model = run.model.build(32, crop, classes)
    assert isinstance(model, Model)
    return model


# masked token modelling


@pytest.mark.parametrize("name", PRE_TRAINED)
def test_pre_training(name: str) -> None:
    run = recipes[name].run
    fit, objective = run.fit, run.objective
    assert (fit.epochs, fit.steps, fit.batch, fit.accumulate, fit.ema) == (400, 0, 4096, 1, 0.0)
    assert fit.optim.lr == pytest.approx(0.0024)  # 1.5e-4 for 256 samples
    assert (fit.optim.name, fit.optim.betas, fit.optim.weight_decay) == ("adamw", (0.9, 0.95), 0.05)
    assert (fit.optim.layer_decay, fit.optim.clip) == (1.0, 0.0)
    assert (fit.schedule.name, fit.schedule.warmup_epochs, fit.schedule.warmup_steps) == ("cosine", 40, 0)
    assert isinstance(objective, MaskedConfig)
    assert (objective.ratio, objective.mean, objective.deviation) == ((0.4, 1.0), 0.45, 0.25)
    assert (objective.hidden, objective.fill, objective.table) == ("dropped", "mask", "learnt")
    assert (objective.width, objective.depth, objective.heads) == (512, 4, 16)
    assert (objective.smoothing, objective.dropout, objective.detach) == (0.0, 0.1, True)
    assert run.codes == (32, 32)
    assert run.evaluation == (CentreCrop((28, 28)),)


@pytest.mark.parametrize("name", [*PRE_TRAINED, *FINE_TUNED])
def test_encoders_see_patches_of_four_codes(name: str) -> None:
    run = recipes[name].run
    model = run.model
    assert isinstance(model, VitConfig)
    assert model.stem == TokenPatchStemConfig(patch=2)
    fixed = name in PRE_TRAINED
    assert (model.width, model.depth, model.heads) == (768, 12, 12)
    assert model.positions == ("sincos" if fixed else "sincos_learnt")
    assert network(run).grid == (14, 14)
    # ViT-B of timm but for the stem, and for positions that pre-training does not learn
    counted = 86_567_656 - (16 * 16 * 3 * 768) + 2 * 2 * 32 * 768 - 197 * 768 * fixed
    assert sum(p.numel() for p in network(run).parameters() if p.requires_grad) == counted


@pytest.mark.parametrize("name", FINE_TUNED)
def test_fine_tuning(name: str) -> None:
    run = recipes[name].run
    fit, model = run.fit, run.model
    assert (fit.epochs, fit.steps, fit.batch) == (100, 0, 1024)
    assert fit.optim.lr == pytest.approx(0.004)  # 1e-3 for 256 samples
    assert (fit.optim.name, fit.optim.layer_decay, fit.optim.weight_decay) == ("adamw", 0.65, 0.1)
    assert fit.schedule.name == "cosine"
    assert fit.optim.lr * fit.schedule.factor(1.0, 0.05) == pytest.approx(1e-6)
    assert isinstance(model, VitConfig)
    assert (model.drop_path, model.pool, model.head_start) == (0.1, "mean", 2e-5)
    assert run.objective == ClassifyCodesConfig(smoothing=0.1, dropout=0.1)
    mixing = step(run, TokenAdapt).cutmix if name == "seitpp_tuned_vit_b" else step(run, Requantise).steps[-1]
    assert mixing == CutMix(1.0, alpha=1.0)


@pytest.mark.parametrize("name", FINE_TUNED)
def test_layer_decay_reaches_the_optimiser(name: str) -> None:
    """0.65 for each layer below the head: stem 0.65^13, block i 0.65^(12 - i), head 1."""
    run = recipes[name].run
    model = network(run)
    objective = build_objective(run, model, Codebook.of(np.zeros((391, 32))))
    assert isinstance(objective, ClassifyCodes)
    groups = build_optimiser(objective, run.fit.optim).param_groups
    scale = {id(parameter): group["scale"] for group in groups for parameter in group["params"]}
    found = {n: scale[id(p)] for n, p in model.named_parameters() if p.requires_grad}
    for name_, value in found.items():
        if name_.startswith("blocks."):
            assert value == pytest.approx(0.65 ** (12 - int(name_.split(".")[1]))), name_
        elif name_.startswith(("head", "fc_norm")):
            assert value == 1
        else:
            assert name_.startswith(("patch_embed", "cls_token", "pos_embed"))
            assert value == pytest.approx(0.65**13)
    assert len(set(found.values())) == 14
    assert {group["weight_decay"] for group in groups} == {0.0, 0.1}
    assert scale[id(objective.table.weight)] == 1, "the table learns as fast as the head, as published"


def test_only_geometry_augments_pre_training() -> None:
    assert recipes["mtm_vit_b"].run.augment == (Requantise((RandomResizedCrop((28, 28), area=(0.2, 1.0)),)),)
    assert recipes["mtm_adapt_vit_b"].run.augment == (
        TokenGeometry(
            share=0.5,
            size=(28, 28),
            area=(0.2, 1.0),
            geometry=Geometry(area=(0.2, 1.0), flip=0.5, rotate=30.0, translate=0.2, shear=15.0),
        ),
    )
    assert replace(recipes["mtm_adapt_vit_b"].run, augment=recipes["mtm_vit_b"].run.augment) == recipes["mtm_vit_b"].run


# augmentation


@pytest.mark.parametrize("name", [*ADAPTED, "seitpp_tuned_vit_b", "fine_grained_seitpp"])
def test_half_of_each_batch_is_augmented_like_pixels(name: str) -> None:
    run = recipes[name].run
    one = step(run, LikePixels)
    side = 14 if name.endswith("f16") else 28
    assert one.share == 0.5
    assert one.size == (side, side)
    wanted = {"area": (0.08, 1.0), "aspect": (3 / 4, 4 / 3), "crop": 1.0, "flip": 0.5}
    wanted |= {"rotate": 30.0, "translate": 0.2, "shear": 15.0}
    assert {key: getattr(one.geometry, key) for key in wanted} == wanted
    assert one.mixing == CutMixOrMixup(CutMix(1.0, alpha=1.0), Mixup(1.0, alpha=0.8), switch=0.5)
    assert (one.area, one.cutmix) == ((0.08, 1.0), CutMix(1.0, alpha=1.0)), "of the other half"
    embeds_itself = isinstance(run.objective, ClassifyCodesConfig)
    assert one.requantise == embeds_itself == (name in ("seitpp_tuned_vit_b", "fine_grained_seitpp"))
    assert run.evaluation == (CentreCrop((side, side)),) if embeds_itself else (Embed(), CentreCrop((side, side)))
    assert run.codes == (side * 8 // 7, side * 8 // 7)
    assert isinstance(one, DecodeEncode if name.startswith("decode") else TokenAdapt)


@pytest.mark.parametrize(
    ("name", "noise", "adapt"),
    [
        ("seitpp_vit_b", 0.25, 0.125),  # from scratch
        ("seitpp_vit_s", 0.25, 0.125),
        ("seitpp_vit_s_f16", 0.25, 0.125),
        ("color_adapt_vit_s", 0.25, 0.125),
        ("fine_grained_seitpp", 0.375, 0.125),
        ("seitpp_tuned_vit_b", 0.375, 0.125),  # in fine-tuning
        ("mtm_tuned_vit_b", 0.5, 0.0),  # SeiT's
        ("token_adapt_vit_s", 0.5, 0.0),
        ("decode_encode_vit_s", 0.5, 0.0),
    ],
)
def test_colours(name: str, noise: float, adapt: float) -> None:
    run = recipes[name].run
    found = [one.colour for one in run.augment if isinstance(one, LikePixels)]
    inner = [one for outer in run.augment for one in (outer.steps if isinstance(outer, Requantise) else (outer,))]
    found += [one for one in inner if isinstance(one, TokenColour)]
    assert found == [TokenColour(noise, adapt)]


@pytest.mark.parametrize("name", [*ADAPTED, "color_adapt_vit_s"])
def test_token_eda_comes_first(name: str) -> None:
    assert recipes[name].run.augment[0] == TokenEda(synonym=0.25, swap=0.25)


@pytest.mark.parametrize("name", [*FINE_TUNED, "fine_grained_seitpp"])
def test_fine_tuning_has_no_token_eda(name: str) -> None:
    assert "token_eda" not in names(recipes[name].run.augment)


def test_fine_tuning_without_adapter_crops_colours_and_mixes_vectors_and_takes_the_nearest_codes() -> None:
    steps = RandomResizedCrop((28, 28), area=(0.08, 1.0)), TokenColour(0.5, 0.0), CutMix(1.0)
    assert recipes["mtm_tuned_vit_b"].run.augment == (Requantise(steps),)


def test_mages_values_are_a_second_recipe() -> None:
    run, published = recipes["mtm_mage_vit_b"].run, recipes["mtm_vit_b"].run
    objective: Any = run.objective
    assert (objective.ratio, objective.mean, objective.smoothing) == ((0.5, 1.0), 0.55, 0.1)
    assert (objective.hidden, objective.fill, objective.detach) == ("partly", "class", False)
    assert replace(run, objective=published.objective) == published


def test_without_adapter_the_steps_are_seits_with_colours_before_mixing() -> None:
    run = recipes["color_adapt_vit_s"].run
    assert names(run.augment) == ["token_eda", "token_crop", "token_colour", "cutmix"]
    assert step(run, TokenCrop) == TokenCrop((28, 28), area=(0.08, 1.0), aspect=(3 / 4, 4 / 3))


@pytest.mark.parametrize("name", [*ADAPTED, "color_adapt_vit_s"])
def test_from_scratch_the_schedule_is_seits(name: str) -> None:
    seit = recipes["seit_vit_b"].run
    assert recipes[name].run.fit == seit.fit
    assert recipes[name].run.objective == seit.objective
    assert (seit.fit.epochs, seit.fit.batch, seit.fit.optim.lr, seit.fit.optim.weight_decay) == (300, 1024, 0.0015, 0.1)
    model: Any = recipes[name].run.model
    assert (model.drop_path, model.pool) == (0.1, "mean")
    assert model.stem == (TokenF16StemConfig() if name.endswith("f16") else TokenStemConfig())
    assert (model.width, model.heads) == ((768, 12) if name == "seitpp_vit_b" else (384, 6))


def test_rows_of_table_7_differ_in_what_they_are_about() -> None:
    both, adapt, colour = (recipes[n].run for n in ("seitpp_vit_s", "token_adapt_vit_s", "color_adapt_vit_s"))
    silent = replace(step(both, TokenAdapt), colour=TokenColour(0.5, 0.0))
    assert replace(both, augment=(both.augment[0], silent)) == adapt
    assert replace(both, augment=colour.augment) == colour
    assert replace(both, model=recipes["seitpp_vit_b"].run.model) == recipes["seitpp_vit_b"].run


def test_fine_grained_transfer() -> None:
    run = recipes["fine_grained_seitpp"].run
    assert (run.fit.epochs, run.fit.batch, run.fit.optim.lr, run.fit.optim.weight_decay) == (300, 1024, 0.001, 0.05)
    assert run.model == recipes["seitpp_tuned_vit_b"].run.model


# TokenAdapt's own training


def test_token_adapt() -> None:
    run = recipes["token_adapt"].run
    assert (run.fit.epochs, run.fit.batch, run.samples) == (1, 128, 0)
    assert (run.fit.optim.name, run.fit.optim.lr, run.fit.optim.weight_decay) == ("adamw", 1e-3, 0.05)
    assert run.fit.schedule.name == "cosine"
    model: Any = run.model
    assert (model.code_dim, model.width, model.heads, model.codes) == (32, 384, 6, 0)
    assert run.size == (256, 256)
    objective: Any = run.objective
    assert (objective.geometry.rotate, objective.geometry.translate, objective.geometry.shear) == (30.0, 0.2, 15.0)


@pytest.mark.parametrize(("name", "samples"), [("token_adapt_1k", 1000), ("token_adapt_100", 100)])
def test_token_adapt_from_few_images(name: str, samples: int) -> None:
    run, whole = recipes[name].run, recipes["token_adapt"].run
    assert run.samples == samples >= run.fit.batch
    assert replace(run, samples=0, fit=whole.fit) == whole
    assert replace(run.fit, epochs=1, steps=0, batch=128, save_every=0, evaluate_every=1) == whole.fit
    assert run.fit.steps == pytest.approx(whole.fit.total_steps(IMAGENET) / 10, rel=0.01)
    assert recipes[f"{name}_cpu"].run.samples == samples


@pytest.mark.parametrize(
    ("name", "samples", "steps"), [("token_adapt_5k", 5000, 1000), ("token_adapt_256k", 256_000, 2000)]
)
def test_token_adapt_from_more_images(name: str, samples: int, steps: int) -> None:
    run = recipes[name].run
    assert (run.samples, run.fit.total_steps(samples)) == (samples, steps)
    assert replace(run, samples=0, fit=recipes["token_adapt"].run.fit) == recipes["token_adapt"].run
    assert recipes[name].published == {"top1_with_it": 75.4}


# chains and miniatures


def test_chains_are_pre_training_and_fine_tuning() -> None:
    for name, first, second in (
        ("mtm_to_seit", "mtm_vit_b", "mtm_tuned_vit_b"),
        ("mtm_to_seitpp", "mtm_adapt_vit_b", "seitpp_tuned_vit_b"),
        ("mtm_to_seit_cpu", "mtm_cpu", "mtm_tuned_cpu"),
        ("mtm_to_seitpp_cpu", "mtm_adapt_cpu", "seitpp_tuned_cpu"),
    ):
        assert [(link.name, link.run) for link in recipes[name].run.links] == [
            ("pretrain", recipes[first].run),
            ("tune", recipes[second].run),
        ]


MINIATURES = {
    "token_adapt_cpu": "token_adapt",
    "color_adapt_cpu": "color_adapt_vit_s",
    "token_adapted_cpu": "token_adapt_vit_s",
    "seitpp_cpu": "seitpp_vit_s",
    "decode_encode_cpu": "decode_encode_vit_s",
    "mtm_cpu": "mtm_vit_b",
    "mtm_adapt_cpu": "mtm_adapt_vit_b",
    "mtm_tuned_cpu": "mtm_tuned_vit_b",
    "seitpp_tuned_cpu": "seitpp_tuned_vit_b",
    "fine_grained_seitpp_cpu": "fine_grained_seitpp",
}


@pytest.mark.parametrize("small", MINIATURES)
def test_small_recipes_are_the_large_ones_in_miniature(small: str) -> None:
    mine, theirs = recipes[small].run, recipes[MINIATURES[small]].run
    assert names(mine.augment) == names(theirs.augment)
    assert names(mine.evaluation) == names(theirs.evaluation)
    assert type(mine.objective) is type(theirs.objective)
    assert type(mine.model) is type(theirs.model)
    assert mine.fit.optim.betas == theirs.fit.optim.betas
    assert mine.fit.optim.layer_decay == theirs.fit.optim.layer_decay
    for one, other in zip(mine.augment, theirs.augment, strict=True):
        assert getattr(one, "share", None) == getattr(other, "share", None)
        assert getattr(one, "colour", None) == getattr(other, "colour", None)
    if isinstance(mine.objective, MaskedConfig):
        large = theirs.objective
        assert isinstance(large, MaskedConfig)
        sizes = {"width": large.width, "depth": large.depth, "heads": large.heads, "standardise": False}
        sizes["table_deviation"] = large.table_deviation
        assert replace(mine.objective, **sizes) == large  # type: ignore[arg-type]


def test_rows_for_two_cores_differ_in_their_augmentation_alone() -> None:
    base = recipes["seit_patch_cpu"].run
    for name in ("color_adapt_cpu", "token_adapted_cpu", "seitpp_cpu", "decode_encode_cpu"):
        assert replace(recipes[name].run, augment=base.augment) == base, name
        assert recipes[name].run.augment != base.augment
    one = step(recipes["seitpp_cpu"].run, TokenAdapt)
    assert one.area == one.geometry.area == step(base, TokenCrop).area, "both halves are cropped alike"
    assert one.cutmix == step(base, CutMix) == one.mixing.cutmix


# tools


def write_tokenizer(path: Path) -> Path:
    config = VitVqConfig(patch=4, codes=16, code_dim=5, width=16, depth=1, heads=2)
    save_tokenizer(path, config.build(3, (32, 48), 0), config, (32, 48))
    return path


ADAPTER_USERS = [*ADAPTED[:4], "seitpp_tuned_vit_b", "mtm_adapt_vit_b", "fine_grained_seitpp", "seitpp_cpu"]


@pytest.mark.parametrize("name", ADAPTER_USERS)
def test_an_adapter_reaches_the_step_that_uses_it(name: str) -> None:
    run = recipes[name].run
    found = equip(run, Artefacts(adapter=Path("some/adapter")))
    (using,) = [number for number, one in enumerate(run.augment) if hasattr(one, "adapter")]
    changed = found.augment[using]
    assert changed.adapter == "some/adapter"  # type: ignore[attr-defined]
    assert replace(changed, adapter="") == run.augment[using]  # type: ignore[call-arg]
    assert replace(found, augment=run.augment) == run


def test_a_tokenizer_reaches_augmentation_and_objective(tmp_path: Path) -> None:
    path = tmp_path / "nowhere"  # looked at only where a network takes its sizes from it
    run = equip(recipes["decode_encode_cpu"].run, Artefacts(tokenizer=path))
    assert step(run, DecodeEncode).tokenizer == str(path)
    masked = equip(recipes["mtm_cpu"].run, Artefacts(tokenizer=path))
    assert masked == replace(
        recipes["mtm_cpu"].run, objective=replace(recipes["mtm_cpu"].run.objective, tokenizer=str(path))
    )  # type: ignore[call-arg]


def test_both_tools_at_once(tmp_path: Path) -> None:
    run: Any = equip(recipes["mtm_adapt_cpu"].run, Artefacts(tokenizer=tmp_path / "t", adapter=tmp_path / "a"))
    assert (run.objective.tokenizer, run.augment[0].adapter) == (str(tmp_path / "t"), str(tmp_path / "a"))


@pytest.mark.parametrize("name", ["token_adapt", "token_adapt_100_cpu"])
def test_a_network_for_a_tokenizer_takes_its_sizes_from_it(name: str, tmp_path: Path) -> None:
    run: Any = equip(recipes[name].run, Artefacts(tokenizer=write_tokenizer(tmp_path / "t")))
    assert run.objective.tokenizer == str(tmp_path / "t")
    assert (run.model.code_dim, run.size) == (5, (32, 48))
    assert run.model.width == recipes[name].run.model.width  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="no tokenizer in"):
        equip(recipes[name].run, Artefacts(tokenizer=tmp_path / "nowhere"))


def test_tools_that_nothing_takes_are_refused() -> None:
    for name in ("seit_cpu", "color_adapt_cpu", "seitpp_cpu", "demo_tokenizer"):
        with pytest.raises(ConfigError, match="takes --tokenizer: leave --tokenizer out"):
            equip(recipes[name].run, Artefacts(tokenizer=Path("t")))
    for name in ("seit_cpu", "mtm_cpu", "token_adapt_cpu", "decode_encode_cpu"):
        with pytest.raises(ConfigError, match="no part of this recipe takes --adapter: leave --adapter out"):
            equip(recipes[name].run, Artefacts(adapter=Path("a")))


def test_tools_of_a_chain_go_to_the_links_that_take_them() -> None:
    chain = equip(recipes["mtm_to_seitpp_cpu"].run, Artefacts(tokenizer=Path("t"), adapter=Path("a")))
    first, second = (link.run for link in chain.links)
    assert first.objective.tokenizer == "t"  # type: ignore[attr-defined]
    assert [first.augment[0].adapter, second.augment[0].adapter] == ["a", "a"]  # type: ignore[attr-defined]
    assert second.objective == recipes["mtm_to_seitpp_cpu"].run.links[1].run.objective
    with pytest.raises(ConfigError, match="no part of this recipe takes --adapter"):
        equip(recipes["mtm_to_seit_cpu"].run, Artefacts(adapter=Path("a")))


def test_without_tools_nothing_changes() -> None:
    for name in recipes:
        run = recipes[name].run
        assert equip(run, Artefacts()) == run
