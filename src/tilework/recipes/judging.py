"""One small classifier for whatever a tokenizer gives, so that only the input differs.

Grids of any multiple of 8 become the same 7x7 tokens: a patch of the stem covers an eighth of the side, and crops take
seven eighths, as of the pixels. Random resized crops and CutMix, which every input can have; nothing else.
"""

from __future__ import annotations

from dataclasses import replace

from tilework.augment import CentreCrop, CutMix, Embed, Normalise, RandomResizedCrop, TokenColour, TokenCrop
from tilework.core.errors import ConfigError
from tilework.layers.stems import PatchStemConfig, StemConfig, TokenPatchStemConfig
from tilework.models import VitConfig
from tilework.objectives import ClassifyConfig
from tilework.recipes.small import AREA, small_fit, small_vit
from tilework.runs.run import Run

PARTS = 8  # patches on a side, before the crop


def judge_codes(grid: tuple[int, int], stacked: bool, steps: int) -> Run:
    """The classifier from a store. stacked: several codes at a position, which have units of their own."""
    side = grid[0]
    if side % PARTS or grid[0] != grid[1]:
        raise ConfigError(
            f"codes of {grid[0]}x{grid[1]} do not make {PARTS}x{PARTS} patches",
            f"give tokenizers whose grids are square multiples of {PARTS}, such as 16x16",
        )
    crop = (side * (PARTS - 1) // PARTS,) * 2
    return Run(
        model=_vit(TokenPatchStemConfig(side // PARTS)),
        objective=ClassifyConfig(smoothing=0.1),
        augment=(TokenCrop(crop, AREA, standardise=not stacked), TokenColour(0.0, 0.0), CutMix(0.5)),
        evaluation=(Embed(standardise=not stacked), CentreCrop(crop)),
        codes=grid,
        fit=small_fit(steps),
    )


def _vit(stem: StemConfig) -> VitConfig:
    return replace(small_vit(stem), positions="sincos")


def judge_pixels(size: tuple[int, int], steps: int) -> Run:
    """The same from images."""
    if size[0] % PARTS or size[0] != size[1]:
        raise ConfigError(f"images of {size[0]}x{size[1]} px do not make {PARTS}x{PARTS} patches", "change their size")
    crop = (size[0] * (PARTS - 1) // PARTS,) * 2
    return Run(
        model=_vit(PatchStemConfig(size[0] // PARTS)),
        objective=ClassifyConfig(smoothing=0.1),
        augment=(RandomResizedCrop(crop, AREA), Normalise(), CutMix(0.5)),
        evaluation=(CentreCrop(crop), Normalise()),
        size=size,
        fit=small_fit(steps),
    )
