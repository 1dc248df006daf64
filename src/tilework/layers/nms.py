"""Non-maximum suppression: of boxes that overlap, the one with the highest score.

torchvision's operator does it where it can be imported and runs on the device; else plain torch, with the same result.
N boxes
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module

import torch
from torch import Tensor

from tilework.layers.boxes import iou

ROWS = 1 << 24  # pairs compared at once


def survivors(boxes: Tensor, scores: Tensor, threshold: float, group: Tensor | None = None) -> Tensor:
    """Which boxes stay, (N,) bool: no kept box of a higher score overlaps them by more than the threshold.

    boxes: (N, 4); scores: (N,); group: (N,) numbers of classes or levels, which do not suppress each other.
    """
    boxes = boxes.float()
    if not len(boxes):
        return torch.zeros(0, dtype=torch.bool, device=boxes.device)
    if group is not None:  # groups are moved apart by more than any box is wide
        boxes = boxes + (group * (boxes.amax() - boxes.amin() + 1))[:, None]
    if operator := native_nms(boxes.device.type):
        kept = torch.zeros(len(boxes), dtype=torch.bool, device=boxes.device)
        kept[operator(boxes, scores.float(), threshold)] = True
        return kept
    return greedy_fixed_point(boxes, scores, threshold)


def greedy_fixed_point(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """The same in plain torch, without a loop over boxes.

    A box is kept if no kept box before it overlaps it. Repeated from all kept, this settles the first box in the first
    round, then at least one more in each: its fixed point is what the greedy loop gives, after some 2 to 7 rounds.
    """
    order = scores.argsort(descending=True, stable=True)
    boxes, count = boxes[order], len(boxes)
    rows = max(1, ROWS // count)
    over = torch.cat([iou(part, boxes) > threshold for part in boxes.split(rows)]).triu(1)  # (N, N)
    kept = torch.ones(count, dtype=torch.bool, device=boxes.device)
    while True:
        again = ~(over & kept[:, None]).any(0)
        if torch.equal(again, kept):
            break
        kept = again
    return torch.zeros_like(kept).scatter_(0, order, kept)


@lru_cache
def native_nms(device: str) -> Callable[[Tensor, Tensor, float], Tensor] | None:
    """torchvision's operator, if it runs on a kind of device."""
    return native("nms", device, (torch.zeros(1, 4), torch.zeros(1), 0.5))


def native(name: str, device: str, example: tuple[object, ...]) -> Callable[..., Tensor] | None:
    """An operator of torchvision that takes the example on the device; None where it is missing or fails."""
    try:
        operator: Callable[..., Tensor] = getattr(import_module("torchvision.ops"), name)
        operator(*(part.to(device) if isinstance(part, Tensor) else part for part in example))
    except Exception:  # not installed, built for another torch, without a kernel for the device: each in its own way
        return None
    return operator
