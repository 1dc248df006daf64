"""Boxes by their edges: overlap, and offsets from an anchor (Girshick, 2015).

Edges are x0, y0, x1, y1; no side has one pixel added. N, M boxes | ... any sides before
"""

from __future__ import annotations

from math import log

import torch
from torch import Tensor

STEEPEST = log(1000 / 16)  # largest logarithm of a side's change
Deviations = tuple[float, float, float, float]  # that offsets are divided by
UNIT: Deviations = (1.0, 1.0, 1.0, 1.0)


def area(boxes: Tensor) -> Tensor:
    """(...,) of boxes (..., 4)."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def _shared(a: Tensor, b: Tensor) -> Tensor:
    """Area that boxes have in common, broadcast."""
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    return (high - low).clamp(min=0).prod(-1)


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of every pair, (N, M)."""
    shared = _shared(a[:, None], b[None])
    return shared / (area(a)[:, None] + area(b)[None] - shared).clamp(min=1e-6)


def covered(a: Tensor, b: Tensor) -> Tensor:
    """Share of each box of `a` that each of `b` covers, (N, M)."""
    return _shared(a[:, None], b[None]) / area(a)[:, None].clamp(min=1e-6)


def giou(a: Tensor, b: Tensor) -> Tensor:
    """Generalised IoU of pairs, (...,): less the share of the hull that neither covers (Rezatofighi et al., 2019)."""
    shared = _shared(a, b)
    union = (area(a) + area(b) - shared).clamp(min=1e-6)
    low, high = torch.minimum(a[..., :2], b[..., :2]), torch.maximum(a[..., 2:], b[..., 2:])
    hull = (high - low).clamp(min=0).prod(-1).clamp(min=1e-6)
    return shared / union - (hull - union) / hull


def _centre(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Centres and sides, (..., 2) each."""
    return (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]


def encode(anchors: Tensor, boxes: Tensor, deviations: Deviations = UNIT) -> Tensor:
    """Offsets of boxes from their anchors, (..., 4): shifts by the anchor's sides, logarithms of sides."""
    (at, sides), (centre, wanted) = _centre(anchors), _centre(boxes)
    sides, wanted = sides.clamp(min=1e-6), wanted.clamp(min=1e-6)
    offsets = torch.cat([(centre - at) / sides, (wanted / sides).log()], -1)
    return offsets / offsets.new_tensor(deviations)


def decode(anchors: Tensor, offsets: Tensor, deviations: Deviations = UNIT) -> Tensor:
    """Boxes from offsets, the inverse of `encode` where no side changes by more than 62.5, (..., 4)."""
    offsets = offsets.float() * torch.tensor(deviations, device=offsets.device)
    at, sides = _centre(anchors)
    centre = at + offsets[..., :2] * sides
    half = sides * offsets[..., 2:].clamp(-STEEPEST, STEEPEST).exp() / 2
    return torch.cat([centre - half, centre + half], -1)


def clip(boxes: Tensor, extent: Tensor) -> Tensor:
    """Boxes inside of others, broadcast. boxes, extent: (..., 4)."""
    low, high = extent[..., :2], extent[..., 2:]
    return torch.cat([torch.clamp(corner, low, high) for corner in boxes.split(2, -1)], -1)
