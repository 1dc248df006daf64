"""TL-Align, TransMix and labels by area (Xiao et al., 2023; the supplement's table 1 and mixing strategies).

Row 2 of table 1, mixup or CutMix for DeiT-S, is `deit_s`. Rows of one block differ in the label rule alone: `classify`
goes by area, `trans_mix` by the class token's attention as well, `tl_align` by the tokens. Boxes of row 4 consist of
whole patches. Runs on pixels and those for a CPU read a class token, which TransMix needs; SeiT's read the mean.
"""

from __future__ import annotations

from dataclasses import replace

from tilework.augment import (
    Augment,
    BlockMix,
    CentreCrop,
    CutMix,
    CutMixOrMixup,
    Embed,
    Erase,
    Flip,
    Mixup,
    Normalise,
    PatchCutMix,
    RandAugment,
    RandomMix,
    RandomResizedCrop,
    TokenCrop,
)
from tilework.layers.stems import PatchStemConfig, TokenStemConfig
from tilework.models import VitConfig, preset
from tilework.objectives import (
    ClassifyConfig,
    ObjectiveConfig,
    TlAlignConfig,
    TlAlignTokenLabelConfig,
    TransMixConfig,
)
from tilework.recipes.lv_vit import lv_vit_s
from tilework.recipes.registry import recipe
from tilework.recipes.seit import SMALL_AREA, fit_of, seit_vit_b, small_fit, vit
from tilework.recipes.seitpp import seitpp_cpu, seitpp_vit_s
from tilework.runs.run import Run

BOXES, RANDOM, BLOCKS = PatchCutMix(16), RandomMix(16), BlockMix(16)


def aligned_run(objective: ObjectiveConfig, mixing: Augment | None, name: str = "deit_s", erase: bool = True) -> Run:
    """DeiT's pipeline on pixels with a label rule and a mixture; 300 epochs."""
    steps = (Flip(), RandAugment(magnitude=9.0, deviation=0.5), Normalise())
    last = (*((Erase(0.25),) if erase else ()), *(() if mixing is None else (mixing,)))
    return Run(
        model=preset(name),
        objective=objective,
        augment=(RandomResizedCrop((224, 224)), *steps, *last),
        evaluation=(CentreCrop((224, 224)), Normalise()),
        size=(256, 256),
        fit=fit_of(300, 1024, 0.0005 * 1024 / 512, 0.05, repeats=3),
    )


# table 1 of the supplement


@recipe
def deit_s_unmixed() -> Run:
    """DeiT-S without any mixture (table 1, row 1).

    `tilework train deit_s_unmixed --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 76.4 top-1. Measured here: not measured.
    """
    return aligned_run(ClassifyConfig(), None)


@recipe
def deit_s_averaged() -> Run:
    """DeiT-S for 310 epochs with averaged weights (table 1, row 3).

    `tilework train deit_s_averaged --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 80.3 top-1. The rate of 0.001 is taken as that of the whole batch. Measured here: not measured.
    """
    mixing = CutMixOrMixup(CutMix(1.0), Mixup(1.0, alpha=0.8), switch=0.8)
    run = aligned_run(ClassifyConfig(), mixing, erase=False)
    fit = fit_of(310, 1024, 0.001, 0.03, repeats=3)
    return replace(run, fit=replace(fit, ema=0.99996, schedule=replace(fit.schedule, warmup_epochs=20)))


@recipe
def deit_s_averaged_trans_mix() -> Run:
    """DeiT-S with averaged weights, mixup or CutMix, and TransMix (table 1, row 3).

    `tilework train deit_s_averaged_trans_mix --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 80.7 top-1. Measured here: not measured.
    """
    return replace(deit_s_averaged(), objective=TransMixConfig())


@recipe
def deit_s_cutmix() -> Run:
    """DeiT-S with CutMix alone (table 1, row 4).

    `tilework train deit_s_cutmix --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 79.8 top-1. Measured here: not measured.
    """
    return aligned_run(ClassifyConfig(), BOXES)


@recipe
def deit_s_trans_mix() -> Run:
    """DeiT-S with CutMix and TransMix (table 1, row 4).

    `tilework train deit_s_trans_mix --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 80.1 top-1. Measured here: not measured.
    """
    return aligned_run(TransMixConfig(), BOXES)


@recipe
def deit_s_tl_align() -> Run:
    """DeiT-S with CutMix and TL-Align (table 1, row 4).

    `tilework train deit_s_tl_align --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 80.6 top-1. Measured here: not measured.
    """
    return aligned_run(TlAlignConfig(), BOXES)


@recipe
def deit_ti_tl_align() -> Run:
    """DeiT-Ti with CutMix and TL-Align.

    `tilework train deit_ti_tl_align --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: no figure in the supplement. Measured here: not measured.
    """
    return aligned_run(TlAlignConfig(), BOXES, "deit_ti")


@recipe
def deit_b_tl_align() -> Run:
    """DeiT-B with CutMix and TL-Align.

    `tilework train deit_b_tl_align --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: no figure in the supplement. Measured here: not measured.
    """
    return aligned_run(TlAlignConfig(), BOXES, "deit_b")


# other mixtures


@recipe
def deit_s_random() -> Run:
    """DeiT-S with random patches of another image.

    `tilework train deit_s_random --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: below the 80.0 of blocks. Measured here: not measured.
    """
    return aligned_run(ClassifyConfig(), RANDOM)


@recipe
def deit_s_random_tl_align() -> Run:
    """DeiT-S with random patches of another image and TL-Align.

    `tilework train deit_s_random_tl_align --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: no figure in the supplement. Measured here: not measured.
    """
    return aligned_run(TlAlignConfig(), RANDOM)


@recipe
def deit_s_blocks() -> Run:
    """DeiT-S with blocks of another image.

    `tilework train deit_s_blocks --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 80.0 top-1. Measured here: not measured.
    """
    return aligned_run(ClassifyConfig(), BLOCKS)


@recipe
def deit_s_blocks_tl_align() -> Run:
    """DeiT-S with blocks of another image and TL-Align.

    `tilework train deit_s_blocks_tl_align --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 80.3 top-1. Measured here: not measured.
    """
    return aligned_run(TlAlignConfig(), BLOCKS)


# tokens, and token labels


def on_codes(run: Run) -> Run:
    """A run of SeiT with aligned labels; boxes of whole tokens, two codes wide."""
    augment = tuple(PatchCutMix(2) if isinstance(step, CutMix) else step for step in run.augment)
    return replace(run, objective=TlAlignConfig(), augment=augment)


@recipe
def seit_vit_s_tl_align() -> Run:
    """SeiT ViT-S on tokens with TL-Align.

    `tilework train seit_vit_s_tl_align --data STORE --val STORE --out RUN`
    Paper: none, `seit_vit_s` with aligned labels. Measured here: not measured.
    """
    return replace(on_codes(seit_vit_b()), model=vit("vit_s"))


@recipe
def seit_vit_b_tl_align() -> Run:
    """SeiT ViT-B on tokens with TL-Align.

    `tilework train seit_vit_b_tl_align --data STORE --val STORE --out RUN`
    Paper: none, `seit_vit_b` with aligned labels. Measured here: not measured.
    """
    return on_codes(seit_vit_b())


@recipe
def seitpp_vit_s_tl_align() -> Run:
    """SeiT++ ViT-S, mixtures through TokenAdapt among them, with TL-Align.

    `tilework train seitpp_vit_s_tl_align --adapter adapt/token_adapt --data STORE --val STORE --out RUN`
    Paper: none, `seitpp_vit_s` with aligned labels. Measured here: not measured.
    """
    return replace(seitpp_vit_s(), objective=TlAlignConfig())


@recipe
def lv_vit_s_tl_align() -> Run:
    """LV-ViT-S with token labels, MixToken and an aligned class label.

    `tilework train lv_vit_s_tl_align --maps MAPS --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: none, `lv_vit_s` with TL-Align. Measured here: not measured.
    """
    return replace(lv_vit_s(), objective=TlAlignTokenLabelConfig())


# the same for two cores: 112 px crops, 7x7 tokens, and 16x16 codes


def small_aligned_run(objective: ObjectiveConfig, mixing: Augment = BOXES) -> Run:
    """A ViT of 0.9 million parameters on pixels: crops, flips, a mixture."""
    return Run(
        model=VitConfig(width=128, depth=4, heads=4, pool="class", stem=PatchStemConfig(16)),
        objective=objective,
        augment=(RandomResizedCrop((112, 112), SMALL_AREA), Flip(), Normalise(), mixing),
        evaluation=(CentreCrop((112, 112)), Normalise()),
        size=(128, 128),
        fit=small_fit(),
    )


@recipe
def cutmix_cpu() -> Run:
    """Small ViT on pixels with CutMix, labels by area.

    `tilework train cutmix_cpu --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: `deit_s_cutmix` in miniature. Measured here: docs/results.md, TL-Align.
    """
    return small_aligned_run(ClassifyConfig())


@recipe
def trans_mix_cpu() -> Run:
    """Small ViT on pixels with CutMix, labels by TransMix.

    `tilework train trans_mix_cpu --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: `deit_s_trans_mix` in miniature. Measured here: docs/results.md, TL-Align.
    """
    return small_aligned_run(TransMixConfig())


@recipe
def tl_align_cpu() -> Run:
    """Small ViT on pixels with CutMix, labels by TL-Align.

    `tilework train tl_align_cpu --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: `deit_s_tl_align` in miniature. Measured here: docs/results.md, TL-Align.
    """
    return small_aligned_run(TlAlignConfig())


@recipe
def random_mix_cpu() -> Run:
    """Small ViT on pixels with random patches of another image, labels by area.

    `tilework train random_mix_cpu --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: `deit_s_random` in miniature. Measured here: not measured.
    """
    return small_aligned_run(ClassifyConfig(), RANDOM)


@recipe
def tl_align_random_cpu() -> Run:
    """Small ViT on pixels with random patches of another image, labels by TL-Align.

    `tilework train tl_align_random_cpu --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: `deit_s_random_tl_align` in miniature. Measured here: docs/results.md, TL-Align.
    """
    return small_aligned_run(TlAlignConfig(), RANDOM)


@recipe
def block_mix_cpu() -> Run:
    """Small ViT on pixels with blocks of another image, labels by area.

    `tilework train block_mix_cpu --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: `deit_s_blocks` in miniature. Measured here: not measured.
    """
    return small_aligned_run(ClassifyConfig(), BLOCKS)


@recipe
def tl_align_block_cpu() -> Run:
    """Small ViT on pixels with blocks of another image, labels by TL-Align.

    `tilework train tl_align_block_cpu --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: `deit_s_blocks_tl_align` in miniature. Measured here: docs/results.md, TL-Align.
    """
    return small_aligned_run(TlAlignConfig(), BLOCKS)


def small_token_aligned_run(objective: ObjectiveConfig) -> Run:
    """A ViT of 0.9 million parameters on codes: crops and boxes of whole tokens."""
    return Run(
        model=VitConfig(width=128, depth=4, heads=4, pool="class", stem=TokenStemConfig()),
        objective=objective,
        augment=(TokenCrop((14, 14), SMALL_AREA, standardise=True), PatchCutMix(2)),
        evaluation=(Embed(standardise=True), CentreCrop((14, 14))),
        codes=(16, 16),
        fit=small_fit(),
    )


@recipe
def token_cutmix_cpu() -> Run:
    """Small ViT on codes with CutMix, labels by area.

    `tilework train token_cutmix_cpu --data STORE --val STORE --out RUN`
    Paper: none, the row that the next two are compared with. Measured here: docs/results.md, TL-Align.
    """
    return small_token_aligned_run(ClassifyConfig())


@recipe
def token_trans_mix_cpu() -> Run:
    """Small ViT on codes with CutMix, labels by TransMix.

    `tilework train token_trans_mix_cpu --data STORE --val STORE --out RUN`
    Paper: none, TransMix on tokens. Measured here: not measured.
    """
    return small_token_aligned_run(TransMixConfig())


@recipe
def token_tl_align_cpu() -> Run:
    """Small ViT on codes with CutMix, labels by TL-Align.

    `tilework train token_tl_align_cpu --data STORE --val STORE --out RUN`
    Paper: none, TL-Align on tokens. Measured here: docs/results.md, TL-Align.
    """
    return small_token_aligned_run(TlAlignConfig())


@recipe
def seitpp_tl_align_cpu() -> Run:
    """`seitpp_cpu`, mixtures through TokenAdapt among them, with TL-Align.

    `tilework train seitpp_tl_align_cpu --adapter adapt/token_adapt --data STORE --val STORE --out RUN`
    Paper: none, `seitpp_vit_s_tl_align` in miniature. Measured here: not measured.
    """
    return replace(seitpp_cpu(), objective=TlAlignConfig())
