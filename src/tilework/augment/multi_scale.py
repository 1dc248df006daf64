"""Multi-scale training of detectors: a short side drawn from some, with or without a crop before (Carion et al., 2020).

As mmdetection and the Swin repository have it, but every image lies at the upper left of one fixed canvas: scale and
crop are one map, and pixels are interpolated once.
B batch | H, W canvas that images were read into | h, w canvas of the network
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from tilework.augment.augment import Augment, Stateless
from tilework.augment.scale_crop import GREY, framed, placed_on
from tilework.core.affine import box_affine, follow
from tilework.core.batch import Batch, Shape, Stage
from tilework.core.rng import Draws


@Augment.choices.add("multi_scale")
@dataclass(frozen=True)
class MultiScale(Stateless[Tensor]):
    """The image at a short side drawn from some; with a probability a box of it, cut at another scale, instead."""

    stages: ClassVar[tuple[Stage, ...]] = ("pixels",)
    size: tuple[int, int] = (1344, 1344)  # of the canvas
    short: tuple[int, ...] = (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)
    long: int = 1333  # the long side is at most this
    crop: float = 0.5  # probability
    before: tuple[int, ...] = (400, 500, 600)  # short sides at which a box is cut
    box: tuple[int, int] = (384, 600)  # smallest and largest side of a box
    fill: tuple[int, int, int] = GREY  # colour beside the image

    def __post_init__(self) -> None:
        sides = (*self.short, *self.before, *self.box, self.long)
        if not self.short or not self.before or min(sides) < 1 or self.box[0] > self.box[1] or not 0 <= self.crop <= 1:
            raise ValueError(f"short {self.short}, long {self.long}, before {self.before}, box {self.box}")

    def output(self, shape: Shape) -> Shape:
        """Of its own size."""
        return replace(shape, grid=self.size)

    def sample(self, draws: Draws, batch: Batch) -> Tensor:
        """Output-to-input maps, (B, 2, 3)."""
        u = draws.uniform("multi_scale", 7)  # whether a crop, short sides after and before, box: sides, place
        column = framed(batch)
        whole = torch.eye(2, 3, device=u.device).repeat(len(u), 1, 1)  # from the image to the canvas it was read into
        sides = torch.tensor(batch.x.shape[-2:], device=u.device, dtype=u.dtype).expand(len(u), 2)
        if column is not None:
            sides, whole = column.frame()
        scaled = (sides * (_drawn(self.before, u[:, 2]) / sides.amin(1))[:, None]).round()  # (B, 2)
        low, high = (scaled.clamp(max=side) for side in self.box)
        box = (low + u[:, 3:5] * (high - low + 1)).floor().minimum(high)
        start = (u[:, 5:7] * (scaled - box + 1)).floor()
        cut = (u[:, :1] < self.crop).to(u.dtype)
        first, part = cut * start / scaled, 1 - cut + cut * box / scaled  # shares of the image
        seen = part * sides  # (B, 2) of the image, in its pixels
        factor = torch.minimum(_drawn(self.short, u[:, 1]) / seen.amin(1), self.long / seen.amax(1))
        size = torch.tensor(self.size, device=u.device, dtype=u.dtype)
        factor = torch.minimum(factor, (size / seen).amin(1))  # a canvas that is too small for it
        share = part * size / (seen * factor[:, None]).round().clamp(min=1)
        return follow(whole, box_affine(*first.unbind(1), *share.unbind(1)))

    def apply(self, batch: Batch, p: Tensor) -> Batch:
        """x: (B, 3, H, W) bytes to (B, 3, h, w) floats in [0, 255]; columns follow."""
        return placed_on(batch, p, self.size, self.fill)


def _drawn(sides: tuple[int, ...], u: Tensor) -> Tensor:
    """One of the sides for each sample, (B,)."""
    known = torch.tensor(sides, device=u.device, dtype=u.dtype)
    return known[(u * len(sides)).long()]
