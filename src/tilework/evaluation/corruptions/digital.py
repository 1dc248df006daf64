"""Geometry and compression of ImageNet-C: elastic transformation, large pixels, JPEG.

B batch | H, W pixels
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from tilework.evaluation.corruptions.blur import gaussian
from tilework.evaluation.corruptions.kind import Corruption, in_unit
from tilework.evaluation.noise import Noise


def _stretching(noise: Noise, x: Tensor, c: Any, scale: float) -> tuple[Tensor, Tensor]:
    return noise.uniform(3, 2, low=-1, high=1), noise.uniform(2, *x.shape[2:], low=-1, high=1)


def _elastic(x: Tensor, c: tuple[float, float, float], p: tuple[Tensor, Tensor], scale: float) -> Tensor:
    """An affine map that moves three points, then a smooth field of moves. p: (B, 3, 2), (B, 2, H, W)."""
    alpha, sd, reach = (244 * value * scale for value in c)
    height, width = x.shape[2:]
    middle, third = torch.tensor([height // 2, width // 2]), min(height, width) // 3
    before = middle + third * torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])  # x, y
    after = F.pad(before + reach * p[0], (0, 1), value=1.0)  # (B, 3, 3)
    affine = torch.linalg.solve(after, before.expand(len(x), 3, 2))  # (B, 3, 2), output to input
    across, down = torch.arange(width).float(), torch.arange(height).float()[:, None]
    moved = [across * a[:, :1, None] + down * a[:, 1:2, None] + a[:, 2:, None] for a in affine.unbind(2)]
    at = torch.stack([m * (2 / (side - 1)) - 1 for m, side in zip(moved, (width, height), strict=True)], -1)
    y = F.grid_sample(in_unit(x), at, padding_mode="reflection", align_corners=True)
    field = gaussian(p[1], sd, "symmetric", 3.0) * alpha  # across, down
    moved = [across + field[:, 0], down + field[:, 1]]
    at = torch.stack([m * (2 / side) + (1 / side - 1) for m, side in zip(moved, (width, height), strict=True)], -1)
    return F.grid_sample(y, at, padding_mode="reflection", align_corners=False)


def _each(x: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    """Every image through Pillow."""
    out = np.empty(x.shape, np.uint8)
    for planes, made in zip(x.numpy(), out, strict=True):
        picture = change(Image.merge("RGB", [Image.fromarray(plane) for plane in planes]))
        made[:] = [np.asarray(plane) for plane in picture.split()]
    return torch.from_numpy(out)


def _pixelate(x: Tensor, c: float, p: None, scale: float) -> Tensor:
    def change(image: Image.Image) -> Image.Image:
        small = image.resize((max(1, int(image.width * c)), max(1, int(image.height * c))), Image.Resampling.BOX)
        return small.resize(image.size, Image.Resampling.NEAREST)

    return _each(x, change)


def _jpeg(x: Tensor, quality: int, p: None, scale: float) -> Tensor:
    def change(image: Image.Image) -> Image.Image:
        data = io.BytesIO()
        image.save(data, "JPEG", quality=quality)
        return Image.open(data)

    return _each(x, change)


ELASTIC = Corruption(
    ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)), _elastic, _stretching
)
PIXELATE = Corruption((0.6, 0.5, 0.4, 0.3, 0.25), _pixelate)
JPEG = Corruption((25, 18, 15, 10, 7), _jpeg)
