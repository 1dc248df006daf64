"""DCT coefficients instead of tokens (SeiT++, table 8): `tilework tokenizer dct`, `tokenize`, then these.

SeiT's pipeline but for Token-EDA: coefficients have no synonyms. TokenAdapt is trained by regression: recipes
`token_adapt` and `token_adapt_cpu` with `--tokenizer` of DCT coefficients. `dct_flip` may be added before the crop.
"""

from __future__ import annotations

from dataclasses import replace

from tilework.augment import CutMix, TokenAdapt
from tilework.augment.color_adapt import TokenColour
from tilework.augment.token_adapt import LikePixels
from tilework.recipes.registry import recipe
from tilework.recipes.seit import SMALL_AREA, fit_of, small_fit, vit
from tilework.recipes.seitpp import COLOURS, NOISE, SMALL_GEOMETRY, SMALL_MIXING, classify_run, small_patch_vit
from tilework.runs.run import Run


def small_dct_run(colour: TokenColour = NOISE, adapt: LikePixels | None = None) -> Run:
    """SeiT's pipeline for two cores and the 16x16 blocks of 128 px images."""
    if adapt is not None:
        adapt = replace(adapt, geometry=SMALL_GEOMETRY, mixing=SMALL_MIXING, cutmix=CutMix(0.5))
    model, fit = small_patch_vit(), small_fit()
    return classify_run(model, fit, colour=colour, adapt=adapt, eda=0.0, cutmix=0.5, crop=14, area=SMALL_AREA)


@recipe
def dct_vit_s() -> Run:
    """ViT-S from DCT coefficients of 256 px images with SeiT's augmentation (table 8).

    `tilework train dct_vit_s --data STORE --val STORE --out RUN`
    Paper: 69.5 top-1 on ImageNet-100. Measured here: not measured.
    """
    return classify_run(vit("vit_s"), fit_of(300, 1024, 0.0015, 0.1), colour=NOISE, eda=0.0)


@recipe
def dctpp_vit_s() -> Run:
    """ViT-S from DCT coefficients of 256 px images with TokenAdapt and ColorAdapt (table 8).

    `tilework train dctpp_vit_s --adapter adapt/token_adapt --data STORE --val STORE --out RUN`
    Paper: 71.0 top-1 on ImageNet-100. Measured here: not measured.
    """
    return classify_run(vit("vit_s"), fit_of(300, 1024, 0.0015, 0.1), eda=0.0, adapt=TokenAdapt())


@recipe
def dct_cpu() -> Run:
    """Small ViT from DCT coefficients with SeiT's augmentation.

    `tilework train dct_cpu --data STORE --val STORE --out RUN`
    Paper: `dct_vit_s` in miniature. Measured here: not measured.
    """
    return small_dct_run()


@recipe
def dct_colour_cpu() -> Run:
    """Small ViT from DCT coefficients with ColorAdapt.

    `tilework train dct_colour_cpu --data STORE --val STORE --out RUN`
    Paper: table 7's second row on DCT coefficients, in miniature. Measured here: not measured.
    """
    return small_dct_run(COLOURS)


@recipe
def dctpp_cpu() -> Run:
    """Small ViT from DCT coefficients with TokenAdapt and ColorAdapt.

    `tilework train dctpp_cpu --adapter adapt/token_adapt --data STORE --val STORE --out RUN`
    Paper: `dctpp_vit_s` in miniature. Measured here: not measured.
    """
    return small_dct_run(COLOURS, TokenAdapt())
