"""Which anchors and regions learn which object, and which are drawn (Ren et al., 2015), as mmdetection has it.

A anchors or regions of an image | M objects of it, some of which may not be there | n of those looked at
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tilework.layers.boxes import covered, iou

NOTHING, UNSURE = -1, -2  # in place of an object's number: background; not to be learnt
TOGETHER = 256  # objects compared with all anchors at once


@dataclass(frozen=True)
class Matching:
    """By which overlap (IoU) an anchor is an object, or is none."""

    positive: float = 0.5  # from here on it is
    negative: float = 0.4  # below it is none; between, it is not learnt
    best: bool = True  # every object also has the anchors that overlap it most
    best_from: float = 0.0  # if they overlap it by this much
    ignored: float = (
        0.5  # share of an anchor inside a crowd or a difficult object from which it is not learnt; 0: all are
    )


def match(
    anchors: Tensor, boxes: Tensor, there: Tensor, ignored: Tensor, how: Matching, usable: Tensor | None = None
) -> Tensor:
    """The object of every anchor, or NOTHING, or UNSURE, (A,). boxes: (M, 4); there, ignored: (M,).

    usable: (A,) anchors that may be matched; the others are UNSURE, and no object asks for them.
    """
    overlap = anchors.new_full((len(anchors),), -1.0)
    owner = torch.zeros(len(anchors), dtype=torch.int64, device=anchors.device)
    best = torch.full_like(owner, -1)
    crowded = torch.zeros_like(owner, dtype=torch.bool)
    learnt = there & ~ignored
    for start in range(0, boxes.shape[0], TOGETHER):  # objects in parts: there may be thousands
        part = slice(start, start + TOGETHER)
        pairs = iou(anchors, boxes[part]).masked_fill(~learnt[part], -1.0)  # (A, m)
        if usable is not None:
            pairs = pairs.masked_fill(~usable[:, None], -1.0)
        highest, which = pairs.max(1)
        owner = torch.where(highest > overlap, which + start, owner)
        overlap = torch.maximum(overlap, highest)
        if how.best:
            top = pairs.amax(0)  # (m,)
            ties = (pairs == top) & (top > 0) & (top >= how.best_from)
            numbers = torch.arange(start, start + pairs.shape[1], device=owner.device)
            best = torch.maximum(best, torch.where(ties, numbers, -1).amax(1))  # the last object that asks for it
        if how.ignored:
            inside = covered(anchors, boxes[part]) >= how.ignored
            crowded = crowded | (inside & (there & ignored)[part]).any(1)
    found = torch.where(overlap >= how.positive, owner, torch.where(overlap < how.negative, NOTHING, UNSURE))
    found = torch.where(crowded & (found == NOTHING), UNSURE, found)
    found = torch.where(best >= 0, best, found)
    return found if usable is None else torch.where(usable, found, UNSURE)


class Sample(NamedTuple):
    """Anchors that are looked at, those that are objects first."""

    rows: Tensor  # (n,) among the anchors
    there: Tensor  # (n,) whether there were so many
    owner: Tensor  # (n,) number of the object; 0 where there is none
    positive: Tensor  # (n,)


def sample(owner: Tensor, count: int, share: float) -> Sample:
    """At most so many anchors, at most a share of them objects, drawn at random. owner: (A,) as `match` gives it.

    Sizes are fixed, so the device is not waited for.
    """
    drawn = torch.rand(len(owner), device=owner.device)
    positive = owner >= 0
    few = min(int(count * share), len(owner))
    first = torch.where(positive, drawn, -1.0).topk(few).indices
    chosen = torch.zeros_like(positive).index_fill(0, first, True) & positive
    order = torch.where(chosen, drawn + 2, torch.where(owner == NOTHING, drawn, -1.0))
    value, rows = order.topk(min(count, len(owner)))
    return Sample(rows, value >= 0, owner[rows].clamp(min=0), value >= 2)
