"""LV-ViT and token labelling (Jiang et al., 2021; table 1, tables 2 to 4 of the supplement).

Label maps come from `tilework annotate`; runs on images take them by `--maps`, stores keep their own. The losses of the
class and of the tokens weigh 1 and 0.5. Table 5 compares `lv_vit_m` at 384 px with CaiT: 36 blocks of width 384 and 12
heads, MLP ratio 4, drop path 0.2 in all blocks, RandAugment, CutMix, mixup, LayerScale, class attention, distillation,
400 epochs; nothing of that is needed here.
"""

from __future__ import annotations

from dataclasses import replace

from tilework.augment import (
    Augment,
    CentreCrop,
    CutMix,
    CutMixOrMixup,
    Embed,
    Erase,
    Flip,
    MixToken,
    Mixup,
    Normalise,
    RandAugment,
    RandomResizedCrop,
    TokenCrop,
)
from tilework.layers.stems import ConvStemConfig, PatchStemConfig, TokenStemConfig
from tilework.models import ModelConfig, VitConfig, preset
from tilework.objectives import ClassifyConfig, ObjectiveConfig, RelabelConfig, TokenLabelConfig
from tilework.recipes.registry import recipe
from tilework.recipes.seit import SMALL_AREA, small_fit
from tilework.runs.run import Run
from tilework.train import FitConfig, OptimConfig, ScheduleConfig


def lv_fit(base: float, epochs: int = 300, batch: int = 1024) -> FitConfig:
    """AdamW at 1e-3 for `base` samples, five epochs of warm-up, cosine to 1e-5, averaged weights."""
    lr = 1e-3 * batch / base
    return FitConfig(
        epochs=epochs,
        batch=batch,
        precision="bf16",
        ema=0.99992,
        optim=OptimConfig(lr=lr, weight_decay=0.05),
        schedule=ScheduleConfig(warmup_epochs=5, floor=1e-5 / lr),
    )


def lv_run(model: ModelConfig, objective: ObjectiveConfig, mixing: tuple[Augment, ...], crop: int = 224) -> Run:
    """Crop, flip, RandAugment and erasing of pixels; label maps move along."""
    steps = (Flip(), RandAugment(magnitude=9.0, deviation=0.5), Normalise(), Erase(0.25))
    side = crop * 8 // 7
    return Run(
        model=model,
        objective=objective,
        augment=(RandomResizedCrop((crop, crop)), *steps, *mixing),
        evaluation=(CentreCrop((crop, crop)), Normalise()),
        size=(side, side),
        fit=lv_fit(640),
    )


def labelled(name: str) -> Run:
    """A network of the paper with token labels and MixToken."""
    return lv_run(preset(name), TokenLabelConfig(), (MixToken((14, 14)),))


# table 1: training by classes, ReLabel, token labelling


@recipe
def lv_vit_s_standard() -> Run:
    """LV-ViT-S with class labels and mixup (table 1, standard).

    `tilework train lv_vit_s_standard --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 82.4 top-1, the row before token labelling of table 2. Measured here: not measured.
    """
    mixing = (CutMixOrMixup(CutMix(1.0), Mixup(1.0, alpha=0.8), switch=0.5),)
    run = lv_run(preset("lv_vit_s", dense=False), ClassifyConfig(), mixing)
    return replace(run, fit=lv_fit(1024))


@recipe
def lv_vit_s_relabel() -> Run:
    """LV-ViT-S with the pooled label of each crop (table 1, ReLabel).

    `tilework train lv_vit_s_relabel --maps MAPS --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: settings of its table 1. Measured here: not measured.
    """
    return replace(lv_run(preset("lv_vit_s", dense=False), RelabelConfig(), ()), fit=lv_fit(1024))


@recipe
def lv_vit_t() -> Run:
    """LV-ViT-T with token labels.

    `tilework train lv_vit_t --maps MAPS --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 8,534,720 parameters. Measured here: not measured.
    """
    return labelled("lv_vit_t")


@recipe
def lv_vit_s() -> Run:
    """LV-ViT-S with token labels.

    `tilework train lv_vit_s --maps MAPS --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 83.3 top-1. Measured here: not measured.
    """
    return labelled("lv_vit_s")


@recipe
def lv_vit_m() -> Run:
    """LV-ViT-M with token labels.

    `tilework train lv_vit_m --maps MAPS --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 55,830,544 parameters; 85.4 top-1 at 384 px. Measured here: not measured.
    """
    return labelled("lv_vit_m")


@recipe
def lv_vit_l() -> Run:
    """LV-ViT-L with token labels.

    `tilework train lv_vit_l --maps MAPS --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 150,021,968 parameters. Measured here: not measured.
    """
    return labelled("lv_vit_l")


@recipe
def lv_vit_s_384() -> Run:
    """LV-ViT-S moved to 384 px, token labels and MixToken kept.

    `tilework train lv_vit_s_384 --start RUN --maps MAPS --data IMAGES/train --out FINE`
    Paper: 84.4 top-1. Measured here: not measured.
    """
    run = lv_run(preset("lv_vit_s"), TokenLabelConfig(), (MixToken((24, 24)),), crop=384)
    optim = OptimConfig(lr=5e-6, weight_decay=1e-8)
    fit = replace(lv_fit(640), epochs=30, batch=512, optim=optim, schedule=ScheduleConfig())
    return replace(run, size=(438, 438), fit=fit)


# the supplement's table 2, from DeiT-S to LV-ViT-S, row by row; the last rows are lv_vit_s and lv_vit_s_384


def path_run(model: VitConfig) -> Run:
    """A step of the path, by class labels."""
    return replace(lv_vit_s_standard(), model=model)


DEIT_S = VitConfig(width=384, depth=12, heads=6, drop_path=0.1)


@recipe
def lv_path_deeper() -> Run:
    """DeiT-S with 16 blocks (table 2).

    `tilework train lv_path_deeper --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 81.2 top-1, 28 million parameters. Measured here: not measured.
    """
    return path_run(replace(DEIT_S, depth=16))


@recipe
def lv_path_narrower() -> Run:
    """DeiT-S with 16 blocks and an MLP ratio of 3 (table 2).

    `tilework train lv_path_narrower --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 81.1 top-1, 25 million parameters. Measured here: not measured. For table 3 set model.stem.
    """
    return path_run(replace(DEIT_S, depth=16, mlp_ratio=3.0))


@recipe
def lv_path_stem() -> Run:
    """DeiT-S with 16 blocks, MLP ratio 3 and four convolutions as stem (tables 2 and 3).

    `tilework train lv_path_stem model.stem.kernels=[7,3,8] model.stem.strides=[2,1,8] --data IMAGES/train --out RUN`
    Paper: 82.2 top-1; other rows of table 3 by other kernels and strides. Measured here: not measured.
    """
    return path_run(replace(DEIT_S, depth=16, mlp_ratio=3.0, stem=ConvStemConfig()))


@recipe
def lv_path_divisor() -> Run:
    """`lv_path_stem` with half of what each block adds (tables 2 and 4).

    `tilework train lv_path_divisor model.divisor=3 --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 82.4 top-1 with 2; table 4 has 1, 2 and 3. Measured here: not measured.
    """
    return path_run(replace(DEIT_S, depth=16, mlp_ratio=3.0, divisor=2.0, stem=ConvStemConfig()))


# the same for two cores: 112 px crops, 7x7 tokens, and 16x16 codes


def small_lv_run(objective: ObjectiveConfig, mix_token: bool) -> Run:
    """A ViT of 0.9 million parameters on pixels, crops and flips only."""
    model = VitConfig(width=128, depth=4, heads=4, pool="mean", dense=True, stem=PatchStemConfig(16))
    model = model if isinstance(objective, TokenLabelConfig) else replace(model, dense=False)
    mixing: tuple[Augment, ...] = (MixToken((7, 7), probability=0.5),) if mix_token else ()
    return Run(
        model=model,
        objective=objective,
        augment=(RandomResizedCrop((112, 112), SMALL_AREA), Flip(), Normalise(), *mixing),
        evaluation=(CentreCrop((112, 112)), Normalise()),
        size=(128, 128),
        fit=small_fit(),
    )


@recipe
def lv_class_cpu() -> Run:
    """Small ViT on pixels by class labels.

    `tilework train lv_class_cpu --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: `lv_vit_s_standard` in miniature, without mixing. Measured here: docs/results.md, Token labels.
    """
    return small_lv_run(ClassifyConfig(), mix_token=False)


@recipe
def lv_mix_token_cpu() -> Run:
    """Small ViT on pixels by class labels, with MixToken.

    `tilework train lv_mix_token_cpu --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: none by itself. Measured here: docs/results.md, Token labels.
    """
    return small_lv_run(ClassifyConfig(), mix_token=True)


@recipe
def lv_labels_cpu() -> Run:
    """Small ViT on pixels by token labels, with MixToken.

    `tilework train lv_labels_cpu --maps MAPS --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: `lv_vit_s` in miniature. Measured here: docs/results.md, Token labels.
    """
    return small_lv_run(TokenLabelConfig(), mix_token=True)


@recipe
def lv_relabel_cpu() -> Run:
    """Small ViT on pixels by the pooled label of each crop.

    `tilework train lv_relabel_cpu --maps MAPS --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: `lv_vit_s_relabel` in miniature. Measured here: docs/results.md, Token labels.
    """
    return small_lv_run(RelabelConfig(), mix_token=False)


def small_token_lv_run(objective: ObjectiveConfig) -> Run:
    """A ViT of 0.8 million parameters on codes, crops only."""
    model = VitConfig(width=128, depth=4, heads=4, pool="mean", dense=True, stem=TokenStemConfig())
    return Run(
        model=model if isinstance(objective, TokenLabelConfig) else replace(model, dense=False),
        objective=objective,
        augment=(TokenCrop((14, 14), SMALL_AREA, standardise=True),),
        evaluation=(Embed(standardise=True), CentreCrop((14, 14))),
        codes=(16, 16),
        fit=small_fit(),
    )


@recipe
def token_class_cpu() -> Run:
    """Small ViT on codes by class labels.

    `tilework train token_class_cpu --data STORE --val STORE --out RUN`
    Paper: none, the row that `token_labels_cpu` is compared with. Measured here: docs/results.md, Token labels.
    """
    return small_token_lv_run(ClassifyConfig())


@recipe
def token_labels_cpu() -> Run:
    """Small ViT on codes with token labels.

    `tilework train token_labels_cpu --data STORE --val STORE --out RUN`
    Paper: none, token labelling on tokens. STORE was annotated (`tilework annotate IMAGES --store STORE`).
    Measured here: docs/results.md, Token labels.
    """
    return small_token_lv_run(TokenLabelConfig())
