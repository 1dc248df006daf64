"""Blurs of ImageNet-C: Gaussian, defocus, motion (ImageMagick's algorithm, which ImageNet-C calls) and zoom.

B batch | C channels | H, W pixels | P planes
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import ceil, cos, exp, radians, sin
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.evaluation.corruptions.kind import Corruption, in_unit
from tilework.evaluation.noise import Noise

BLOCK = 32  # rows or columns of a blur that are made by one product
PLANES = 1 << 16  # values of planes that are worked on together: a cache full


@lru_cache(maxsize=64)
def _blur_blocks(sd: float, side: int, mode: str, truncate: float) -> list[tuple[slice, slice, Tensor]]:
    """A Gaussian of one axis as parts of a banded matrix: pixels that are made, those they need, and weights.

    mode: what lies beyond the edge: the edge again (edge) or the mirrored image (symmetric).
    """
    radius = int(truncate * sd + 0.5)
    taps = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sd) ** 2)
    places = np.pad(np.arange(side), radius, mode=mode)  # type: ignore[call-overload]
    matrix = np.zeros((side, side))
    for i, tap in enumerate(taps / taps.sum()):
        np.add.at(matrix, (np.arange(side), places[i : i + side]), tap)
    made = [slice(start, min(start + BLOCK, side)) for start in range(0, side, BLOCK)]
    needed = [slice(max(0, part.start - radius), min(side, part.stop + radius)) for part in made]
    return [(m, n, torch.from_numpy(matrix[m, n]).float()) for m, n in zip(made, needed, strict=True)]


def gaussian(x: Tensor, sd: float, mode: str = "edge", truncate: float = 4.0) -> Tensor:
    """x: (..., H, W) blurred along both axes."""
    if sd < 1e-3:
        return x
    height, width = x.shape[-2:]
    planes = x.reshape(-1, height, width)
    once, twice = torch.empty_like(planes), torch.empty_like(planes)
    for made, needed, weights in _blur_blocks(sd, height, mode, truncate):
        torch.matmul(weights, planes[:, needed], out=once[:, made])
    for made, needed, weights in _blur_blocks(sd, width, mode, truncate):
        twice[:, :, made] = once[:, :, needed] @ weights.T
    return twice.view(x.shape)


def weighted_shifts(padded: Tensor, taps: list[tuple[float, int, int]], size: tuple[int, int]) -> Tensor:
    """Sum of shifted images. padded: (C, H', W'); taps: weight, top and left of what is added; returns (C, H, W)."""
    out = torch.zeros(len(padded), *size)
    for weight, top, left in taps:
        out.add_(padded[:, top : top + size[0], left : left + size[1]], alpha=weight)
    return out


@lru_cache(maxsize=32)
def disk(radius: float, sd: float) -> Tensor:
    """A disk, antialiased: what a point becomes when it is out of focus. (k, k)"""
    half = max(8, ceil(radius))
    places = torch.arange(-half, half + 1)
    inside = (places[:, None] ** 2 + places**2 <= radius**2).float()
    reach = 1 if radius <= 8 else 2
    taps = torch.tensor([exp(-0.5 * (i / sd) ** 2) for i in range(-reach, reach + 1)])
    taps = taps / taps.sum()
    padded = F.pad((inside / inside.sum())[None, None], (reach,) * 4, mode="reflect")
    return F.conv2d(F.conv2d(padded, taps.view(1, 1, 1, -1)), taps.view(1, 1, -1, 1))[0, 0]


def _defocus(x: Tensor, c: tuple[float, float], p: None, scale: float) -> Tensor:
    kernel = disk(c[0] * scale, c[1])
    padded = F.pad(in_unit(x), (len(kernel) // 2,) * 4, mode="reflect").flatten(0, 1)
    some = max(1, PLANES // padded[0].numel())
    return torch.cat([_symmetric(planes, kernel) for planes in padded.split(some)]).view(x.shape)


def _symmetric(padded: Tensor, kernel: Tensor) -> Tensor:
    """Filter with a kernel that is the same upside down and mirrored. padded: (P, H', W'); returns (P, H, W)."""
    half = len(kernel) // 2
    height, width = (side - 2 * half for side in padded.shape[1:])
    quarter = kernel[half:, half:].tolist()
    above = [padded[:, half - i : half - i + height] for i in range(half + 1)]
    rows = [above[0], *(above[i] + padded[:, half + i : half + i + height] for i in range(1, half + 1))]
    out = torch.zeros(len(padded), height, width)
    for j in range(half + 1):
        column = torch.zeros_like(rows[0])
        for row, weights in zip(rows, quarter, strict=True):
            if weights[j]:
                column.add_(row, alpha=weights[j])
        for left in {half - j, half + j}:
            out += column[..., left : left + width]
    return out


def angles(low: float, high: float) -> Callable[[Noise, Tensor, Any, float], Tensor]:
    """What draws a direction of each image, in degrees."""
    return lambda noise, x, c, scale: noise.uniform(low=low, high=high)


def motion(x: Tensor, radius: float, sd: float, angle: Tensor) -> Tensor:
    """Blurred in one direction: half a Gaussian of 2 r + 1 steps, as ImageMagick. x: (B, C, H, W); angle: (B,) in °."""
    count = 2 * ceil(radius) + 1
    weights = [exp(-0.5 * (i / sd) ** 2) for i in range(count)]
    padded, size = F.pad(x, (count,) * 4, mode="replicate"), (x.shape[2], x.shape[3])
    out = []
    for image, degrees in zip(padded, angle.tolist(), strict=True):
        down, right = sin(radians(degrees)), cos(radians(degrees))
        steps = ((w / sum(weights), ceil(i * down - 0.5), ceil(i * right - 0.5)) for i, w in enumerate(weights))
        out.append(weighted_shifts(image, [(w, count + top, count + left) for w, top, left in steps], size))
    return torch.stack(out)


def clipped_zoom(x: Tensor, factor: float) -> Tensor:
    """The middle of images enlarged to their size, linearly between its outermost pixels. x: (B, C, H, W)."""
    inner = [ceil(side / factor) for side in x.shape[2:]]
    top, left = ((side - cut) // 2 for side, cut in zip(x.shape[2:], inner, strict=True))
    middle = x[..., top : top + inner[0], left : left + inner[1]]
    larger = [round(cut * factor) for cut in inner]
    grown = F.interpolate(middle, larger, mode="bilinear", align_corners=True)
    top, left = ((out - side) // 2 for side, out in zip(x.shape[2:], larger, strict=True))
    return grown[..., top : top + x.shape[2], left : left + x.shape[3]]


def _zoom(x: Tensor, c: tuple[float, float], p: None, scale: float) -> Tensor:
    y = in_unit(x).contiguous(memory_format=torch.channels_last)  # interpolates three times as fast
    factors = np.arange(1, *c).tolist()
    total = y.clone()
    for factor in factors:
        total += clipped_zoom(y, factor) if factor > 1 else y
    return total.div_(len(factors) + 1).contiguous()


GAUSSIAN = Corruption((1, 2, 3, 4, 6), lambda x, sd, p, scale: gaussian(in_unit(x), sd * scale))
DEFOCUS = Corruption(((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)), _defocus)
MOTION = Corruption(
    ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    lambda x, c, angle, scale: motion(in_unit(x), c[0] * scale, c[1] * scale, angle),
    angles(-45, 45),
)
ZOOM = Corruption(((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)), _zoom)
