"""Training on codes without places in the image: TiTok's few tokens, VAR's maps of several scales."""

from __future__ import annotations

from tilework.augment import Embed, EmbeddingNoise, Mixup
from tilework.layers.stems import TokenPatchStemConfig
from tilework.objectives import ClassifyConfig
from tilework.recipes.registry import recipe
from tilework.recipes.seit import small_fit, small_vit
from tilework.runs.run import Run


@recipe
def sequence_cpu() -> Run:
    """Small ViT with a token for every code, mixup and noise, nothing that cuts or moves places.

    `tilework train sequence_cpu --data STORE --val STORE --out RUN`
    Paper: none; stores of TiTok and VAR have no places to crop. Measured here: not measured.
    """
    return Run(
        model=small_vit(TokenPatchStemConfig(1)),
        objective=ClassifyConfig(smoothing=0.1),
        augment=(Embed(standardise=True), Mixup(0.5), EmbeddingNoise(0.5)),
        evaluation=(Embed(standardise=True),),
        fit=small_fit(),
    )
