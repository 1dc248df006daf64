"""What makes for good tokenizers: stems, MoTo, TokenProp (Qian et al., 2022; tables 1, 2, 4 to 13 and 17).

Settings of DeiT and Swin are those of table 17; T2T-ViT and PVT take DeiT's, the former for 310 epochs. The columns of
segmentation and detection are not here. The paper's parameters and operations of MoTo fit no single placement: ours is
before the patches unless `model.stem.place=token` says otherwise. The sizes for a CPU are those of `lv_class_cpu`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilework.augment import CentreCrop, Flip, Normalise, RandAugment, RandomResizedCrop, TwoViews
from tilework.layers.stem_early_conv import EarlyConvStemConfig
from tilework.layers.stem_frozen import FrozenStemConfig
from tilework.layers.stem_moto import MotoStemConfig
from tilework.layers.stem_refined import RefinedStemConfig
from tilework.layers.stems import PatchStemConfig, StemConfig
from tilework.models import SwinConfig, preset
from tilework.objectives import ClassifyConfig, MocoConfig, TokenPropConfig
from tilework.recipes.lv_vit import small_lv_run
from tilework.recipes.registry import recipe
from tilework.recipes.seit import SMALL_AREA, pixel_run, small_fit
from tilework.runs.run import Extra, Run
from tilework.train import FitConfig, OptimConfig, ScheduleConfig

TOKEN_PROP = (Extra(TokenPropConfig(), 0.001),)
SMALL_TOKEN_PROP = (Extra(TokenPropConfig(wide=0.25), 0.001),)  # whose decoder costs no more than the small ViT


def deit_fit(epochs: int = 300) -> FitConfig:
    """DeiT's column of table 17: averaged weights and three copies of each image."""
    return FitConfig(
        epochs=epochs,
        batch=1024,
        repeats=3,
        precision="bf16",
        ema=0.99996,
        optim=OptimConfig(lr=1e-3, weight_decay=0.05),
        schedule=ScheduleConfig(warmup_epochs=5, floor=0.01),
    )


def swin_fit(epochs: int = 300) -> FitConfig:
    """Swin's column of table 17: half the batch and rate, a long warm-up, clipped gradients."""
    return FitConfig(
        epochs=epochs,
        batch=512,
        precision="bf16",
        optim=OptimConfig(lr=5e-4, weight_decay=0.05, clip=5.0),
        schedule=ScheduleConfig(warmup_epochs=20, floor=0.01),
    )


def with_moto(run: Run, **settings: Any) -> Run:
    """The same run with MoTo around its stem."""
    model: Any = run.model
    return replace(run, model=replace(model, stem=MotoStemConfig(model.stem, **settings)))


def with_stem(run: Run, stem: StemConfig) -> Run:
    """The same run with another stem."""
    model: Any = run.model
    return replace(run, model=replace(model, stem=stem))


BACKBONES = {
    "deit_s": deit_fit(),
    "deit_b": deit_fit(),
    "t2t_vit_14": deit_fit(310),
    "t2t_vit_19": deit_fit(310),
    "pvt_small": deit_fit(),
    "pvt_medium": deit_fit(),
    "pvt_v2_b2": deit_fit(),
    "swin_t": swin_fit(),
    "swin_s": swin_fit(),
}
PAPER: dict[
    str, tuple[float | None, ...]
] = {  # top-1: plain, with MoTo (table 2), with TokenProp (table 10), with both (table 12); None: no such row
    "deit_s": (79.8, 81.6, 80.7, 82.6),
    "deit_b": (81.8, 82.9, 82.5, None),
    "t2t_vit_14": (81.5, 82.3, 82.2, 82.8),
    "t2t_vit_19": (None, None, 82.8, None),
    "pvt_small": (79.8, 81.0, 80.9, None),
    "pvt_medium": (81.2, 82.1, 81.8, None),
    "pvt_v2_b2": (82.0, 82.7, None, None),
    "swin_t": (81.2, 82.2, 82.3, 82.9),
    "swin_s": (83.0, 83.7, None, None),
}
VARIANTS = (("", "as it is"), ("_moto", "with MoTo"), ("_token_prop", "with TokenProp"), ("_both", "with both"))


def supervised(backbone: str, variant: str = "") -> Run:
    """A backbone on pixels by class labels; variant: '', '_moto', '_token_prop' or '_both'."""
    run = pixel_run(preset(backbone), BACKBONES[backbone])
    run = with_moto(run) if variant in ("_moto", "_both") else run
    return replace(run, extra=TOKEN_PROP) if variant in ("_token_prop", "_both") else run


def _file(backbone: str, variant: str, words: str, accuracy: float) -> None:
    """A row of tables 2, 10 or 12 as a recipe."""

    def row() -> Run:
        return supervised(backbone, variant)

    row.__name__ = name = f"good_{backbone}{variant}"
    row.__doc__ = f"""{backbone} {words} (tables 2, 10, 12).

    `tilework train {name} --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: {accuracy} top-1. Measured here: not measured.
    """
    recipe(row)


for _backbone, _paper in PAPER.items():
    for (_variant, _words), _accuracy in zip(VARIANTS, _paper, strict=True):
        if _accuracy is not None:
            _file(_backbone, _variant, _words, _accuracy)


# table 1: designs of the stem; the plain one is good_deit_s


@recipe
def good_deit_s_frozen() -> Run:
    """DeiT-S with random patches that are never trained (tables 1 and 11).

    `tilework train good_deit_s_frozen --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 79.4 top-1. Measured here: not measured.
    """
    return with_stem(supervised("deit_s"), FrozenStemConfig())


@recipe
def good_deit_s_intra() -> Run:
    """DeiT-S with windows of 4, 8 and 16 px in each patch (table 1).

    `tilework train good_deit_s_intra --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 80.5 top-1. Measured here: not measured.
    """
    return with_stem(supervised("deit_s"), RefinedStemConfig())


@recipe
def good_deit_s_intra_local() -> Run:
    """And windows of twice the size (table 1).

    `tilework train good_deit_s_intra_local --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 80.9 top-1. Measured here: not measured.
    """
    return with_stem(supervised("deit_s"), RefinedStemConfig(local=True))


@recipe
def good_deit_s_intra_local_inter() -> Run:
    """And attention among the tokens (table 1).

    `tilework train good_deit_s_intra_local_inter --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 82.0 top-1. Measured here: not measured.
    """
    return with_stem(supervised("deit_s"), RefinedStemConfig(local=True, inter=True))


def contrastive(run: Run, area: tuple[float, float] = (0.08, 1.0), crop: int = 224) -> Run:
    """Two views of each image; RandAugment stands for the changes of colour, blur and solarising of MoCo v3."""
    steps = (RandomResizedCrop((crop, crop), area), Flip(), RandAugment(magnitude=9.0, deviation=0.5), Normalise())
    return replace(run, objective=MocoConfig(), augment=(TwoViews(steps),))


@recipe
def good_moco_deit_s() -> Run:
    """DeiT-S by MoCo v3, for the linear column of table 1.

    `tilework train good_moco_deit_s 'model.stem={name: frozen}' --data IMAGES/train --out RUN`, then `tilework probe`
    Paper: 68.1 linear with plain patches, 69.0 frozen, 68.4 intra, 68.5 and local, 68.7 and inter. The paper sweeps
    rate and decay. Measured here: not measured.
    """
    fit = FitConfig(
        epochs=300,
        batch=4096,
        precision="bf16",
        optim=OptimConfig(lr=2.4e-3, weight_decay=0.1),
        schedule=ScheduleConfig(warmup_steps=10_000),
    )
    return replace(contrastive(supervised("deit_s")), fit=fit)


# tables 4 to 6: MoTo by parts; the row with eight entities in the stem is good_deit_s_moto


@recipe
def good_deit_s_moto_hard() -> Run:
    """DeiT-S with MoTo where each place belongs to one entity (table 4).

    `tilework train good_deit_s_moto_hard model.stem.entities=32 --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 80.5 top-1 with 16 entities, 80.8 with 32. Soft, by `good_deit_s_moto model.stem.entities=N`: 80.8 with 2,
    81.1 with 4, 81.6 with 8, 81.7 with 16. Measured here: not measured.
    """
    return with_moto(supervised("deit_s"), entities=16, hard=True)


@recipe
def good_deit_s_moto_blocks() -> Run:
    """DeiT-S with MoTo in the stem and at the end of the first blocks (table 5).

    `tilework train good_deit_s_moto_blocks model.moto_blocks=8 --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 81.8 top-1 with 4 blocks, 81.9 with 8, 81.4 with 12. Measured here: not measured.
    """
    run = supervised("deit_s", "_moto")
    model: Any = run.model
    return replace(run, model=replace(model, moto_blocks=4))


@recipe
def good_deit_s_norm() -> Run:
    """DeiT-S with another norm in the place of MoTo (table 6).

    `tilework train good_deit_s_norm model.stem.norm=batch --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 80.1 top-1 with instance norm, 79.5 with batch norm, 79.6 with layer norm. Measured here: not measured.
    """
    return with_moto(supervised("deit_s"), norm="instance")


# tables 7 to 9: TokenProp by parts; the row with L2 at 64 px is good_deit_s_token_prop


@recipe
def good_deit_s_token_prop_l1() -> Run:
    """DeiT-S with TokenProp by another loss (tables 7 to 9).

    `tilework train good_deit_s_token_prop_l1 --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 80.2 top-1; 80.4 with extra.0.objective.kind=perceptual and 80.8 with contextual, both with the file of a VGG
    as extra.0.objective.perceptual_weights. Of `good_deit_s_token_prop`: 80.4 and 80.6 with extra.0.weight=0.01 and
    0.1, not a number with 1; 80.4 and 77.3 with extra.0.objective.size=128 and 256; 80.4 and 80.5 with wide=2 and 4.
    Measured here: not measured.
    """
    return replace(supervised("deit_s"), extra=(Extra(TokenPropConfig(kind="l1"), 0.001),))


# table 11: SGD in place of AdamW; the paper tunes rate and decay of each row and does not say them


def by_sgd(run: Run) -> Run:
    """The same run by SGD; rate and decay are our choice."""
    optim = OptimConfig(name="sgd", lr=0.5, weight_decay=1e-4, clip=1.0)
    return replace(run, fit=replace(run.fit, optim=optim))


@recipe
def good_deit_s_sgd() -> Run:
    """DeiT-S by SGD (table 11).

    `tilework train good_deit_s_sgd fit.optim.lr=1 --data IMAGES/train --val IMAGES/val --out RUN`; a sweep:
    `tilework table "a: good_deit_s_sgd fit.optim.lr=0.5" "b: good_deit_s_sgd fit.optim.weight_decay=3e-4" --data ...`
    Paper: 76.7 top-1. Measured here: not measured.
    """
    return by_sgd(supervised("deit_s"))


@recipe
def good_deit_s_frozen_sgd() -> Run:
    """DeiT-S with frozen patches by SGD (table 11).

    `tilework train good_deit_s_frozen_sgd --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 76.0 top-1. Measured here: not measured.
    """
    return by_sgd(good_deit_s_frozen())


@recipe
def good_deit_s_conv_sgd() -> Run:
    """DeiT-S with early convolutions by SGD (table 11).

    `tilework train good_deit_s_conv_sgd --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 78.2 top-1. Measured here: not measured.
    """
    return by_sgd(with_stem(supervised("deit_s"), EarlyConvStemConfig()))


@recipe
def good_deit_s_token_prop_sgd() -> Run:
    """DeiT-S with TokenProp by SGD (table 11).

    `tilework train good_deit_s_token_prop_sgd --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 78.9 top-1. Measured here: not measured.
    """
    return by_sgd(supervised("deit_s", "_token_prop"))


@recipe
def good_deit_s_conv_token_prop_sgd() -> Run:
    """DeiT-S with early convolutions and TokenProp by SGD (table 11).

    `tilework train good_deit_s_conv_token_prop_sgd --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 79.6 top-1. Measured here: not measured.
    """
    return by_sgd(with_stem(supervised("deit_s", "_token_prop"), EarlyConvStemConfig()))


# table 13: a part of the data, 100 epochs


@recipe
def good_swin_t_part() -> Run:
    """Swin-T on a tenth of ImageNet (table 13).

    `tilework train good_swin_t_part samples=256233 --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 43.5 top-1 with 10 %, 61.2 with 20 %, 71.6 with 40 %, 73.7 with 50 %. Measured here: not measured.
    """
    return replace(supervised("swin_t"), samples=128_116, fit=swin_fit(100))


@recipe
def good_swin_t_both_part() -> Run:
    """The same with MoTo and TokenProp (table 13).

    `tilework train good_swin_t_both_part samples=256233 --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 46.5 top-1 with 10 %, 63.9 with 20 %, 73.2 with 40 %, 75.1 with 50 %. Measured here: not measured.
    """
    return replace(supervised("swin_t", "_both"), samples=128_116, fit=swin_fit(100))


# the same for two cores: 112 px crops and 7x7 tokens, as `lv_class_cpu`


def small_run(stem: StemConfig) -> Run:
    """A ViT of 0.9 million parameters on pixels with a stem."""
    return with_stem(small_lv_run(ClassifyConfig(), mix_token=False), stem)


@recipe
def good_plain_cpu() -> Run:
    """Small ViT with plain patches.

    `tilework train good_plain_cpu --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: `good_deit_s` in miniature. Measured here: docs/results.md, Stems.
    """
    return small_run(PatchStemConfig())


@recipe
def good_frozen_cpu() -> Run:
    """Small ViT with frozen patches.

    `tilework train good_frozen_cpu --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: `good_deit_s_frozen` in miniature. Measured here: docs/results.md, Stems.
    """
    return small_run(FrozenStemConfig())


@recipe
def good_intra_cpu() -> Run:
    """Small ViT with several windows in each patch.

    `tilework train good_intra_cpu --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: `good_deit_s_intra` in miniature. Measured here: docs/results.md, Stems.
    """
    return small_run(RefinedStemConfig())


@recipe
def good_intra_local_cpu() -> Run:
    """And windows of twice the size.

    `tilework train good_intra_local_cpu --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: `good_deit_s_intra_local` in miniature. Measured here: docs/results.md, Stems.
    """
    return small_run(RefinedStemConfig(local=True))


@recipe
def good_intra_local_inter_cpu() -> Run:
    """And attention among the tokens.

    `tilework train good_intra_local_inter_cpu --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: `good_deit_s_intra_local_inter` in miniature. Measured here: docs/results.md, Stems.
    """
    return small_run(RefinedStemConfig(local=True, inter=True))


@recipe
def good_moto_cpu() -> Run:
    """Small ViT with MoTo before its patches.

    `tilework train good_moto_cpu --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: `good_deit_s_moto` in miniature; model.stem.norm=none keeps the thin map alone.
    Measured here: docs/results.md, Stems.
    """
    return small_run(MotoStemConfig())


@recipe
def good_token_prop_cpu() -> Run:
    """Small ViT with TokenProp.

    `tilework train good_token_prop_cpu --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: `good_deit_s_token_prop` in miniature. Measured here: docs/results.md, Stems.
    """
    return replace(small_run(PatchStemConfig()), extra=SMALL_TOKEN_PROP)


@recipe
def good_both_cpu() -> Run:
    """Small ViT with MoTo and TokenProp.

    `tilework train good_both_cpu --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: `good_deit_s_both` in miniature. Measured here: docs/results.md, Stems.
    """
    return replace(small_run(MotoStemConfig()), extra=SMALL_TOKEN_PROP)


def small_swin(moto: bool = False) -> Run:
    """A Swin of 1.1 million parameters in three stages, from 28x28 tokens down to 7x7."""
    stem: StemConfig = MotoStemConfig(PatchStemConfig(4)) if moto else PatchStemConfig(4)
    model = SwinConfig(width=48, depths=(1, 1, 2), heads=(2, 4, 8), stem=stem)
    return replace(small_run(PatchStemConfig()), model=model)


@recipe
def good_swin_cpu() -> Run:
    """Small Swin.

    `tilework train good_swin_cpu --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: `good_swin_t` in miniature. Measured here: not measured.
    """
    return small_swin()


@recipe
def good_swin_both_cpu() -> Run:
    """Small Swin with MoTo and TokenProp.

    `tilework train good_swin_both_cpu --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: `good_swin_t_both` in miniature. Measured here: not measured.
    """
    return replace(small_swin(moto=True), extra=SMALL_TOKEN_PROP)


@recipe
def good_moco_cpu() -> Run:
    """Small ViT by MoCo v3.

    `tilework train good_moco_cpu --data IMAGES/train --out RUN`, then `tilework probe RUN`
    Paper: `good_moco_deit_s` in miniature. Measured here: not measured.
    """
    run = contrastive(small_run(PatchStemConfig()), SMALL_AREA, crop=112)
    evaluation = (CentreCrop((112, 112)), Normalise())
    return replace(run, objective=MocoConfig(hidden=512, outputs=64), evaluation=evaluation, fit=small_fit())
