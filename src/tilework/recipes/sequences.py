"""Training on codes without positions in the image: TiTok's few tokens, VAR's maps of several scales."""

from __future__ import annotations

from tilework.augment import Embed, EmbeddingNoise, Mixup
from tilework.layers.stems import TokenPatchStemConfig
from tilework.objectives import ClassifyConfig
from tilework.recipes.recipe import add
from tilework.recipes.small import small_fit, small_vit
from tilework.runs.run import Run

SEQUENCE = Run(
    model=small_vit(TokenPatchStemConfig(1)),
    objective=ClassifyConfig(smoothing=0.1),
    augment=(Embed(standardise=True), Mixup(0.5), EmbeddingNoise(0.5)),
    evaluation=(Embed(standardise=True),),
    fit=small_fit(),
)
note = "a token for every code, nothing that cuts or moves positions: stores of TiTok and VAR have none to crop"
add("", "sequence_cpu", "mixup and noise on sequences of codes", "small ViT", SEQUENCE, size="cpu", note=note)
