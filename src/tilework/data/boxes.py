"""Boxes, and outlines where they are known, that follow their images through crops, flips and turns.

B batch | M objects of the image that has most | L layers of outlines | h, w input | H, W pixels of the largest image
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tilework.core.batch import Mix
from tilework.core.errors import ConfigError
from tilework.data.objects import Objects
from tilework.data.placement import Placement


@dataclass(frozen=True)
class Outlines:
    """Maps of numbers of objects, and where each object lies."""

    ids: Tensor  # (B, L, H, W) uint8; 0: none
    which: Tensor  # (B, M, 2) layer and number of each object


@dataclass(frozen=True)
class Boxes:
    """Objects of images as they are stored, and where the input lies on the images.

    Boxes are moved by the inverse of the input's map and cut at its edges, once, where they are asked for; under a turn
    they are the hulls of their corners, which are loose.
    """

    edges: Tensor  # (B, M, 4) float32 in pixels of the image
    labels: Tensor  # (B, M) int64
    valid: Tensor  # (B, M): whether there is an object
    ignored: Tensor  # (B, M): crowds and difficult objects, which are neither learnt nor counted as wrong
    place: Placement
    outlines: Outlines | None = None

    @staticmethod
    def of(
        objects: Sequence[Objects],
        sides: Tensor,
        affine: Tensor | None = None,
        layers: Sequence[tuple[np.ndarray, np.ndarray]] | None = None,
    ) -> Boxes:
        """Objects of some images. sides: (B, 2); affine: (B, 2, 3) from the input to the image; None: it is whole.

        layers: outlines as `Objects.layers` gives them.
        """
        count, most = len(objects), max((len(one) for one in objects), default=0)
        edges, labels = np.zeros((count, most, 4), np.float32), np.zeros((count, most), np.int64)
        valid, ignored = np.zeros((2, count, most), bool)
        for i, one in enumerate(objects):
            edges[i, : len(one)], labels[i, : len(one)] = one.edges, one.labels
            valid[i, : len(one)], ignored[i, : len(one)] = True, one.ignored
        place = Placement.whole(sides) if affine is None else Placement(sides, affine)
        drawn = None if layers is None else _outlines(layers, most)
        parts = [torch.from_numpy(part) for part in (edges, labels, valid, ignored)]
        return Boxes(parts[0], parts[1], parts[2], parts[3], place, drawn)

    def warp(self, affine: Tensor, grid: tuple[int, int], filled: bool = False) -> Boxes:
        """Crop, flip or turn: maps are composed, no box is moved yet."""
        return replace(self, place=self.place.warp(affine))

    def permute(self, source: Tensor) -> Boxes:
        """Objects would be torn."""
        raise ConfigError("exchanging parts of an image tears its objects", "leave swaps out of detection recipes")

    def mix(self, mix: Mix) -> Boxes:
        """No paper of detection here mixes samples."""
        raise ConfigError("boxes of mixed samples are not defined", "leave mixing out of detection recipes")

    def to(self, device: torch.device) -> Boxes:
        """The same objects on a device."""
        edges, labels, valid, ignored = (
            part.to(device, non_blocking=True) for part in (self.edges, self.labels, self.valid, self.ignored)
        )
        drawn = self.outlines
        if drawn is not None:
            drawn = Outlines(drawn.ids.to(device, non_blocking=True), drawn.which.to(device, non_blocking=True))
        return Boxes(edges, labels, valid, ignored, self.place.to(device), drawn)

    def rows(self, which: slice) -> Boxes:
        """Objects of some samples."""
        edges, labels, valid, ignored = (part[which] for part in (self.edges, self.labels, self.valid, self.ignored))
        drawn = self.outlines
        drawn = None if drawn is None else Outlines(drawn.ids[which], drawn.which[which])
        return Boxes(edges, labels, valid, ignored, self.place.rows(which), drawn)

    def frame(self) -> tuple[Tensor, Tensor]:
        """Height and width of each image, (B, 2), and the map from the image to the input, (B, 2, 3)."""
        return self.place.frame()

    def inside(self, height: int, width: int) -> Tensor:
        """Whether every position of the input on a grid shows the image, (B, h, w)."""
        return self.place.look(height, width)[2]

    def largest_share(self, affine: Tensor) -> Tensor:
        """Boxes do not say how much of the image a class takes: 0, (B,)."""
        return torch.zeros(len(affine), device=affine.device)

    def at(self, height: int, width: int, smallest: float = 1.0, visible: float = 0.0) -> tuple[Tensor, Tensor]:
        """Edges on an input of so many positions, (B, M, 4), and whether an object can be seen there, (B, M).

        smallest: side that it must have there; visible: share of its area that must be left.
        """
        boxes = self.place.boxes_on_input(self.edges, height, width)
        sides = boxes[..., 2:] - boxes[..., :2]
        seen = self.valid & (sides >= smallest).all(-1)
        if visible:
            stretch = (self.place.affine[:, 0, :2] * self.place.affine[:, 1, :2].flip(1)).diff(dim=1).abs()  # (B, 1)
            pixels = self.place.sides.prod(1, keepdim=True) * stretch / (height * width)  # of an input position
            whole = (self.edges[..., 2:] - self.edges[..., :2]).prod(-1)
            seen = seen & (sides.prod(-1) * pixels >= visible * whole)
        return boxes, seen

    def outlines_in(self, boxes: Tensor, sample: Tensor, number: Tensor, side: int, grid: tuple[int, int]) -> Tensor:
        """Which cells of boxes an object fills, (N, s, s): the bilinear mean of four points is at least a half.

        boxes: (N, 4) on an input of `grid`; sample, number: (N,) whose image, and which of its objects.
        """
        if self.outlines is None:
            raise ConfigError("the data have no outlines of objects", "give COCO annotations with segmentations")
        steps = (torch.arange(2 * side, device=boxes.device) + 0.5) / (2 * side)
        along = boxes[:, None, :2] + (boxes[:, None, 2:] - boxes[:, None, :2]) * steps[:, None]  # (N, 2 s, 2) x, y
        pairs = torch.broadcast_tensors(along[:, None, :, 0], along[:, :, None, 1])
        at = self.place.points_on_image(torch.stack(pairs, -1), sample, *grid) - 0.5  # (N, 2 s, 2 s, 2)
        layer, wanted = self.outlines.which[sample, number].unbind(1)
        sides = self.place.sides[sample].flip(1)[:, None, None]  # width, height
        base = at.floor()
        share, total = at - base, torch.zeros_like(at[..., 0])
        for down in (0, 1):
            for across in (0, 1):
                corner = base + base.new_tensor([across, down])
                inside = ((corner >= 0) & (corner < sides)).all(-1)
                x, y = corner.clamp(min=0).minimum(sides - 1).long().unbind(-1)
                found = self.outlines.ids[sample[:, None, None], layer[:, None, None], y, x]
                weight = (share[..., 0] if across else 1 - share[..., 0]) * (
                    share[..., 1] if down else 1 - share[..., 1]
                )
                total = total + weight * (inside & (found == wanted[:, None, None]))
        return torch.nn.functional.avg_pool2d(total[:, None], 2)[:, 0] >= 0.5


def _outlines(layers: Sequence[tuple[np.ndarray, np.ndarray]], most: int) -> Outlines:
    """Layers of images of any sizes, each at the upper left of a common one."""
    depth, height, width = (max(ids.shape[i] for ids, _ in layers) for i in range(3))
    ids = np.zeros((len(layers), depth, height, width), np.uint8)
    which = np.zeros((len(layers), most, 2), np.int64)
    for i, (own, objects) in enumerate(layers):
        ids[i, : own.shape[0], : own.shape[1], : own.shape[2]] = own
        which[i, : len(objects)] = objects
    return Outlines(torch.from_numpy(ids), torch.from_numpy(which))
