"""Spatter of ImageNet-C: drops of water with their edges, or mud.

B batch | H, W pixels
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.core.compiled import kernels
from tilework.evaluation.corruptions.blur import gaussian, weighted_shifts
from tilework.evaluation.corruptions.kind import Corruption, in_unit
from tilework.evaluation.noise import Noise

WATER, MUD = (175 / 255, 238 / 255, 238 / 255), (63 / 255, 42 / 255, 20 / 255)
KERNELS = "tilework.evaluation.kernels"
FARTHEST = 20  # pixels from an edge, as far as it is looked for


def _liquid(noise: Noise, x: Tensor, c: Any, scale: float) -> Tensor:
    return noise.normal(*x.shape[2:])


def _spatter(x: Tensor, c: tuple[float, float, float, float, float, str], p: Tensor, scale: float) -> Tensor:
    mean, sd, blur, threshold, strength, kind = c
    layer = gaussian(mean + sd * p, blur * scale)
    layer = layer.masked_fill(layer < threshold, 0)
    y = in_unit(x)
    if kind == "mud":
        cover = gaussian((layer > threshold).float(), strength * scale)
        cover = cover.masked_fill(cover < 0.8, 0)[:, None]
        return y * (1 - cover) + cover * torch.tensor(MUD).view(3, 1, 1)
    layer = (layer * 255).floor().remainder(256)
    shade = _box(edge_distance(edges(layer, 50, 150))).floor()
    shade = _box(_relief(_equalise(shade))).round()
    cover = layer * shade
    cover = cover / cover.amax((1, 2), keepdim=True).clamp(min=1e-12) * strength
    return y.add_(cover[:, None] * torch.tensor(WATER).view(3, 1, 1))


def _filter(x: Tensor, kernel: tuple[tuple[float, ...], ...], mode: str = "reflect") -> Tensor:
    """x: (B, H, W), by a kernel of 3x3."""
    padded = F.pad(x[:, None], (1, 1, 1, 1), mode=mode)[:, 0]
    taps = [(kernel[i][j], i, j) for i in range(3) for j in range(3) if kernel[i][j]]
    return weighted_shifts(padded, taps, (x.shape[1], x.shape[2]))


def _box(x: Tensor) -> Tensor:
    return _filter(x, ((1 / 9,) * 3,) * 3)


def _relief(x: Tensor) -> Tensor:
    return _filter(x, ((-2, -1, 0), (-1, 1, 1), (0, 1, 2))).clamp_(0, 255)


def _equalise(x: Tensor) -> Tensor:
    """Histogram equalisation of each image. x: (B, H, W), whole numbers of a byte."""
    images = x.flatten(1).long()
    rows = torch.arange(len(x))[:, None] * 256
    counts = torch.bincount((images + rows).flatten(), minlength=256 * len(x)).view(-1, 256)
    total = counts.cumsum(1)
    least = counts.gather(1, (counts > 0).int().argmax(1, keepdim=True))  # of the darkest
    table = ((total - least) * (255 / (images.shape[1] - least).clamp(min=1))).round()
    return table.gather(1, images).view(x.shape)


def edges(x: Tensor, low: float, high: float) -> Tensor:
    """Edges that are thin and strong, or joined to strong ones (Canny, 1986). x: (B, H, W); returns it as bool."""
    across = _filter(x, ((-1, 0, 1), (-2, 0, 2), (-1, 0, 1)), "replicate")
    down = _filter(x, ((-1, -2, -1), (0, 0, 0), (1, 2, 1)), "replicate")
    wide, tall = across.abs(), down.abs()
    size = wide + tall
    padded = F.pad(size, (1, 1, 1, 1))
    height, width = x.shape[1:]

    def beside(dy: int, dx: int) -> Tensor:
        return padded[:, 1 + dy : 1 + dy + height, 1 + dx : 1 + dx + width]

    flat, steep = tall < wide * 0.41421356, tall > wide * 2.41421356
    rising = (across < 0) != (down < 0)
    falls = (size > beside(-1, -1)) & (size > beside(1, 1))
    climbs = (size > beside(-1, 1)) & (size > beside(1, -1))
    level = (size > beside(0, -1)) & (size >= beside(0, 1))
    upright = (size > beside(-1, 0)) & (size >= beside(1, 0))
    slanted = torch.where(rising, climbs, falls)
    thin = torch.where(flat, level, torch.where(steep, upright, slanted)) & (size > low)
    found = thin & (size > high)
    if fast := kernels(KERNELS):
        fast.join(found.numpy(), thin.numpy())
        return found
    while True:
        wider = F.pad(found, (1, 1, 1, 1))
        wider = wider[:, :-2] | wider[:, 1:-1] | wider[:, 2:]
        wider = (wider[..., :-2] | wider[..., 1:-1] | wider[..., 2:]) & thin
        if torch.equal(wider, found):
            return found
        found = wider


@lru_cache(maxsize=1)
def _chamfer() -> Tensor:
    """Length of the shortest way by steps to (1, 0), (1, 1) and (2, 1) (Borgefors, 1986), (21, 22)."""
    rows, columns = torch.meshgrid(torch.arange(FARTHEST + 1.0), torch.arange(FARTHEST + 2.0), indexing="ij")
    more, less = torch.maximum(rows, columns), torch.minimum(rows, columns)
    straight = 2.1969 * less + (more - 2 * less)
    slanted = 2.1969 * (more - less) + 1.4 * (2 * less - more)
    return torch.where(2 * less <= more, straight, slanted).clamp_(max=FARTHEST)


def edge_distance(edge: Tensor) -> Tensor:
    """Distance to the nearest edge, at most 20. edge: (B, H, W) bool."""
    if fast := kernels(KERNELS):
        out = torch.empty(edge.shape)
        fast.distance(edge.numpy(), _chamfer().numpy(), out.numpy())
        return out
    beside = torch.where(edge, 0, FARTHEST + 1).int()  # distance in the same row
    for step in (1, 2, 4, 8, 16):
        nearer = beside.clone()
        torch.minimum(nearer[..., step:], beside[..., :-step] + step, out=nearer[..., step:])
        torch.minimum(nearer[..., :-step], beside[..., step:] + step, out=nearer[..., :-step])
        beside = nearer
    padded = F.pad(beside, (0, 0, FARTHEST, FARTHEST), value=FARTHEST + 1)
    found = torch.full(edge.shape, float(FARTHEST))
    for away, lengths in enumerate(_chamfer()):
        if found.max() <= away:
            break
        above, below = (padded[:, start : start + edge.shape[1]] for start in (FARTHEST - away, FARTHEST + away))
        nearer = torch.minimum(above, below)
        found = torch.minimum(found, lengths.index_select(0, nearer.flatten()).view(found.shape))
    return found


SPATTER = Corruption(
    (
        (0.65, 0.3, 4, 0.69, 0.6, "water"),
        (0.65, 0.3, 3, 0.68, 0.6, "water"),
        (0.65, 0.3, 2, 0.68, 0.5, "water"),
        (0.65, 0.3, 1, 0.65, 1.5, "mud"),
        (0.67, 0.4, 1, 0.65, 1.5, "mud"),
    ),
    _spatter,
    _liquid,
    together=8,
)
