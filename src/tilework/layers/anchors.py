"""Anchors: boxes of some sizes and aspects at every position of every level (Ren et al., 2015), as in mmdetection.

h, w grid of a level | A anchors of a position
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import sqrt

import torch
from torch import Tensor


def anchors_at(stride: float, sizes: Sequence[float], ratios: Sequence[float]) -> Tensor:
    """Anchors of the first position, (A, 4): ratio by ratio, sizes within. sizes: in strides; ratios: height to width.

    Centres lie at multiples of the stride, without half a step.
    """
    half = [
        (stride * size / sqrt(ratio) / 2, stride * size * sqrt(ratio) / 2) for ratio in ratios for size in sizes
    ]  # of the width, of the height
    return torch.tensor([[-w, -h, w, h] for w, h in half])


@lru_cache(maxsize=32)
def grid_anchors(
    grids: tuple[tuple[int, int], ...],
    strides: tuple[float, ...],
    sizes: tuple[float, ...],
    ratios: tuple[float, ...],
    device: torch.device,
) -> Tensor:
    """Anchors of all levels, (sum of h w A, 4): level by level, row by row, those of a position together."""
    levels = []
    for (height, width), stride in zip(grids, strides, strict=True):
        y, x = torch.meshgrid(torch.arange(height) * stride, torch.arange(width) * stride, indexing="ij")
        shifts = torch.stack([x, y, x, y], -1).float()  # (h, w, 4)
        levels.append((shifts[:, :, None] + anchors_at(stride, sizes, ratios)).view(-1, 4))
    return torch.cat(levels).to(device)
