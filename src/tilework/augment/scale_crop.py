"""Random scale and crop for segmentation: an image at half to twice a size, a box of it (mmsegmentation).

Scale, box and the canvas that the image was read into are one map, and pixels are interpolated once. A box in which one
class has too many of the labelled pixels is drawn again, judged on a coarse look-up.
B batch | H, W canvas | h, w crop | T tries
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from tilework.augment.affine import warp
from tilework.augment.augment import Augment, Fixed, Stateless
from tilework.core.affine import box_affine, follow
from tilework.core.batch import Batch, Framed, Shape, Stage
from tilework.core.rng import Draws

GREY = (124, 116, 104)  # ImageNet's mean


@Augment.choices.add("scale_crop")
@dataclass(frozen=True)
class ScaleCrop(Stateless[Tensor]):
    """A box of the image at a random scale; what lies beyond the image is grey, and void in its mask."""

    stages: ClassVar[tuple[Stage, ...]] = ("pixels",)
    size: tuple[int, int] = (512, 512)
    short: int = 512  # sides of the image at scale 1: at most this for the short one
    long: int = 2048  # and for the long one
    scale: tuple[float, float] = (0.5, 2.0)
    limit: float = 0.75  # largest share of one class; 1: any
    tries: int = 10
    fill: tuple[int, int, int] = GREY  # colour beyond the image

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1] or self.tries < 1 or min(self.short, self.long) < 1:
            raise ValueError(f"scale {self.scale}, sides {self.short} and {self.long}, tries {self.tries}")

    def output(self, shape: Shape) -> Shape:
        """Of its own size."""
        return replace(shape, grid=self.size)

    def sample(self, draws: Draws, batch: Batch) -> Tensor:
        """Output-to-input maps, (B, 2, 3)."""
        u = draws.uniform("scale_crop", 1 + 2 * self.tries)  # scale, then top and left of each try
        mask = framed(batch)
        whole = torch.eye(2, 3, device=u.device).repeat(len(u), 1, 1)  # from the image to the canvas
        sides = torch.tensor(batch.x.shape[-2:], device=u.device, dtype=u.dtype).expand(len(u), 2)
        if mask is not None:
            sides, whole = mask.frame()
        factor = self.scale[0] + (self.scale[1] - self.scale[0]) * u[:, 0]
        factor = factor * torch.minimum(self.short / sides.amin(1), self.long / sides.amax(1))
        scaled = (sides * factor[:, None]).round()  # (B, 2)
        size = torch.tensor(self.size, device=u.device, dtype=u.dtype)
        room = (scaled - size).clamp(min=0)
        height, width = (size / scaled).unbind(1)
        tried = []
        for t in range(self.tries if mask is not None and self.limit < 1 else 1):
            top, left = ((u[:, 1 + 2 * t : 3 + 2 * t] * (room + 1)).floor() / scaled).unbind(1)
            tried.append(follow(whole, box_affine(top, left, height, width)))
        maps = torch.stack(tried, 1)  # (B, T, 2, 3)
        if mask is None or len(tried) == 1:
            return maps[:, 0]
        fits = torch.stack([mask.largest_share(affine) <= self.limit for affine in tried], 1)
        return maps[torch.arange(len(u), device=u.device), fits.to(torch.uint8).argmax(1)]

    def apply(self, batch: Batch, p: Tensor) -> Batch:
        """x: (B, 3, H, W) bytes to (B, 3, h, w) floats in [0, 255]; columns follow."""
        return placed_on(batch, p, self.size, self.fill)


def placed_on(batch: Batch, p: Tensor, size: tuple[int, int], fill: tuple[int, int, int]) -> Batch:
    """Images resampled onto a canvas, a colour beside them; columns follow. p: (B, 2, 3) output to input."""
    x = warp(batch.x.float(), p, size)
    y, across = ((torch.arange(n, device=p.device) * 2 + 1) / n - 1 for n in size)
    rows = p[:, :, 1:2] * y + p[:, :, 2:]  # (B, 2, h)
    places = rows[..., None] + (p[:, :, :1] * across)[:, :, None]  # (B, 2, h, w)
    inside = places.abs().amax(1, keepdim=True) < 1
    columns = {name: column.warp(p, size, filled=True) for name, column in batch.columns.items()}
    moved = batch.changed(columns=columns)
    column = framed(moved)
    if column is not None:
        inside = inside & column.inside(*size)[:, None]  # a letterboxed canvas has room beside the image
    colour = torch.tensor(fill, dtype=x.dtype, device=x.device).view(3, 1, 1)
    return moved.changed(x=torch.where(inside, x, colour))


def framed(batch: Batch) -> Framed | None:
    """The first column that knows where the image lies on the input."""
    return next((column for column in batch.columns.values() if isinstance(column, Framed)), None)


@Augment.choices.add("resize")
@dataclass(frozen=True)
class Resize(Fixed):
    """The whole map at another size: bilinear, averaged where it shrinks."""

    size: tuple[int, int] = (512, 512)

    def output(self, shape: Shape) -> Shape:
        """Of its own size."""
        return replace(shape, grid=self.size)

    def apply(self, batch: Batch, p: None) -> Batch:
        """x: (B, C, H, W) to (B, C, h, w); columns follow."""
        x = batch.x.float()
        if x.shape[-2:] != self.size:
            x = torch.nn.functional.interpolate(x, self.size, mode="bilinear", align_corners=False, antialias=True)
        whole = torch.eye(2, 3, device=x.device).repeat(len(x), 1, 1)
        columns = {name: column.warp(whole, self.size) for name, column in batch.columns.items()}
        return batch.changed(x=x, columns=columns)
