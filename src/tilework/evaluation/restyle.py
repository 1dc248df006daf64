"""Restylings of photographs: proxies for drawn and painted images, and never called ImageNet-R or Sketch.

They change texture and colour of the same photograph, not pose, composition or how people draw.
B batch | H, W pixels
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi

import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.core.rng import Draws
from tilework.evaluation.corruptions.blur import gaussian
from tilework.evaluation.corruptions.kind import GREY, to_bytes

TILE = 16  # pixels of a shuffled block


def restyle(x: Tensor, name: str, draws: Draws) -> Tensor:
    """Restyled images. x: (B, 3, H, W) uint8 on the host."""
    return to_bytes(RESTYLINGS[name](x / 255, draws))


def _grey(y: Tensor) -> Tensor:
    return sum(weight * y[:, i : i + 1] for i, weight in enumerate(GREY)).expand_as(y).clone()  # type: ignore[union-attr]


def _edges(y: Tensor, draws: Draws) -> Tensor:
    """Difference of Gaussians, thresholded: dark lines on white."""
    grey = _grey(y)[:, :1]
    return (gaussian(grey, 1.0) - gaussian(grey, 1.6) > -0.01).float().expand_as(y).clone()


def _median(y: Tensor, side: int) -> Tensor:
    half, (height, width) = side // 2, y.shape[2:]
    padded = F.pad(y, (half,) * 4, mode="replicate")
    parts = [padded[..., i : i + height, j : j + width] for i in range(side) for j in range(side)]
    return torch.stack(parts).median(0).values


def _posterise(y: Tensor, draws: Draws) -> Tensor:
    """Six levels after a median of 5 px."""
    return (_median(y, 5) * 5).round() / 5


def _paint(y: Tensor, draws: Draws) -> Tensor:
    """Kuwahara filter: the mean of the calmest of four squares of 4 px around each pixel."""
    reach, (height, width) = 3, y.shape[2:]
    padded = F.pad(y, (reach,) * 4, mode="replicate")
    mean = F.avg_pool2d(padded, reach + 1, 1)
    spread = (F.avg_pool2d(padded.square(), reach + 1, 1) - mean.square()).sum(1, keepdim=True)
    corners = [(i, j) for i in (0, reach) for j in (0, reach)]
    means = torch.stack([mean[..., i : i + height, j : j + width] for i, j in corners])
    calm = torch.stack([spread[..., i : i + height, j : j + width] for i, j in corners]).argmin(0, keepdim=True)
    return means.gather(0, calm.expand(1, *y.shape))[0]


def _halftone(y: Tensor, draws: Draws) -> Tensor:
    """Black dots of 6 px on white, larger where it is darker."""
    rows, columns = (torch.arange(side).float() * 2 * pi / 6 for side in y.shape[2:])
    screen = (rows[:, None].cos() + columns.cos()) / 4 + 0.5
    return (_grey(y) > screen).float()


def _recolour(y: Tensor, draws: Draws) -> Tensor:
    """Mean and deviation of every channel drawn anew, by image."""
    u = draws.uniform("restyle/recolour", 6).view(len(y), 6, 1, 1)
    mean, deviation = y.mean((2, 3), keepdim=True), y.std((2, 3), keepdim=True).clamp(min=1e-3)
    return (y - mean) / deviation * (0.1 + 0.25 * u[:, :3]) + 0.2 + 0.6 * u[:, 3:]


def _shuffle(y: Tensor, draws: Draws) -> Tensor:
    """Blocks of 16 px in another order: shape is gone, so accuracy should be."""
    batch, channels, height, width = y.shape
    rows, columns = height // TILE, width // TILE
    inner = y[..., : rows * TILE, : columns * TILE].unfold(2, TILE, TILE).unfold(3, TILE, TILE)
    blocks = inner.permute(0, 2, 3, 1, 4, 5).reshape(batch, rows * columns, -1)
    order = draws.uniform("restyle/shuffle", rows * columns).argsort(1)
    moved = blocks.gather(1, order[..., None].expand_as(blocks)).view(batch, rows, columns, channels, TILE, TILE)
    out = y.clone()
    out[..., : rows * TILE, : columns * TILE] = moved.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
    return out


RESTYLINGS: dict[str, Callable[[Tensor, Draws], Tensor]] = {
    "edges": _edges,
    "posterise": _posterise,
    "paint": _paint,
    "halftone": _halftone,
    "negative": lambda y, draws: 1 - y,
    "grey": lambda y, draws: _grey(y),
    "recolour": _recolour,
    "shuffle": _shuffle,
}
