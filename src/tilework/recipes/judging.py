"""One small classifier for whatever a tokenizer gives, so that only the input differs.

Grids of any multiple of 8 become the same 7x7 tokens: a patch of the stem covers an eighth of the side, and crops take
seven eighths, as of the pixels. Random resized crops and CutMix, which every input can have; nothing else.
"""

from __future__ import annotations

from dataclasses import replace

from tilework.augment import CentreCrop, CutMix, Normalise, RandomResizedCrop
from tilework.augment.color_adapt import TokenColour
from tilework.core.errors import ConfigError
from tilework.layers.stems import PatchStemConfig, TokenPatchStemConfig
from tilework.objectives import ClassifyConfig
from tilework.recipes.seit import SMALL_AREA, small_fit
from tilework.recipes.seitpp import classify_run, small_patch_vit
from tilework.runs.run import Run

PARTS = 8  # patches on a side, before the crop


def judge_codes(grid: tuple[int, int], stacked: bool, steps: int) -> Run:
    """The classifier from a store. stacked: several codes at a place, which have units of their own."""
    side = grid[0]
    if side % PARTS or grid[0] != grid[1]:
        raise ConfigError(
            f"codes of {grid[0]}x{grid[1]} do not make {PARTS}x{PARTS} patches",
            f"give tokenizers whose grids are square multiples of {PARTS}, such as 16x16",
        )
    model = replace(small_patch_vit(), stem=TokenPatchStemConfig(side // PARTS))
    return classify_run(
        model,
        small_fit(steps),
        colour=TokenColour(0.0, 0.0),
        eda=0.0,
        cutmix=0.5,
        crop=side * (PARTS - 1) // PARTS,
        area=SMALL_AREA,
        standardise=not stacked,
    )


def judge_pixels(size: tuple[int, int], steps: int) -> Run:
    """The same from images."""
    if size[0] % PARTS or size[0] != size[1]:
        raise ConfigError(f"images of {size[0]}x{size[1]} px do not make {PARTS}x{PARTS} patches", "change their size")
    crop = (size[0] * (PARTS - 1) // PARTS,) * 2
    return Run(
        model=replace(small_patch_vit(), stem=PatchStemConfig(size[0] // PARTS)),
        objective=ClassifyConfig(smoothing=0.1),
        augment=(RandomResizedCrop(crop, SMALL_AREA), Normalise(), CutMix(0.5)),
        evaluation=(CentreCrop(crop), Normalise()),
        size=size,
        fit=small_fit(steps),
    )
