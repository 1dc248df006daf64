"""Random resized crop and centre crop of code maps and pixels (SeiT, Token-RRC; Szegedy et al., 2015).

Interpolation is linear and separable: a crop of a whole batch is two batched matrix products. Interpolating code
vectors equals interpolating one-hot maps and then multiplying by the codebook, at a fraction of the work.

B batch | C channels | H, W input grid | h, w output grid
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from tilework.augment.augment import Augment, Fixed, Stateless
from tilework.core.affine import TRIES, box_affine, random_boxes
from tilework.core.batch import Batch, Shape, Stage
from tilework.core.bounds import check_ranges
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws

# Keys' cubic convolution with a = -0.75, the constant torch's bicubic interpolation uses: weights of the positions
# -1, 0, 1, 2 (columns) as polynomials of how far the point lies beyond position 0 (rows: powers 0 to 3)
CUBIC = ((0.0, 1.0, 0.0, 0.0), (-0.75, 0.0, 0.75, 0.0), (1.5, -2.25, 1.5, -0.75), (-0.75, 1.25, -1.25, 0.75))


@lru_cache
def _cubic(device: torch.device) -> Tensor:
    return torch.tensor(CUBIC, device=device)


def interpolation_taps(scale: Tensor, shift: Tensor, source: int, target: int) -> tuple[Tensor, Tensor]:
    """The four positions each output reads and their bicubic weights; one axis.

    The edges of the box are repeated, as if it had been cut out first.
    scale, shift: (B,) output to input; returns int64 and float32, (B, target, 4) both.
    """
    centres = torch.linspace(1 / target - 1, 1 - 1 / target, target, device=scale.device)  # (target,) in [-1, 1]
    middle, half = (shift + 1) * (source / 2), scale * (source / 2)  # of the box, in input positions
    at = torch.addcmul(middle[:, None] - 0.5, half[:, None], centres)  # (B, target)
    base = at.floor()
    half = half.abs()
    low, high = (edge.round_().clamp_(0, source)[:, None, None] for edge in (middle - half, middle + half))
    places = (base[..., None] + torch.arange(-1, 3, device=scale.device)).clamp_(low, high - 1)
    t = at - base  # (B, target) in [0, 1)
    square = t * t
    powers = torch.stack([torch.ones_like(t), t, square, square * t], -1)  # (B, target, 4)
    return places.long(), powers @ _cubic(scale.device)


def interpolation_matrix(scale: Tensor, shift: Tensor, source: int, target: int) -> Tensor:
    """The taps of one axis as a matrix, (B, target, source)."""
    places, weights = interpolation_taps(scale, shift, source, target)
    return torch.zeros(len(scale), target, source, device=scale.device).scatter_add_(2, places, weights)


def warp_axes(x: Tensor, affine: Tensor, grid: tuple[int, int]) -> Tensor:
    """Resample a map by an output-to-input map without rotation or shear. x: (B, C, H, W); affine: (B, 2, 3).

    A map whose channels lie together in memory stays so: its rows are one product, whatever the number of channels.
    """
    batch, channels, height, width = x.shape
    rows = interpolation_matrix(affine[:, 1, 1], affine[:, 1, 2], height, grid[0])  # (B, h, H)
    columns = interpolation_matrix(affine[:, 0, 0], affine[:, 0, 2], width, grid[1])  # (B, w, W)
    x = x.to(rows.dtype)
    if x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
        y = rows @ x.permute(0, 2, 3, 1).reshape(batch, height, width * channels)  # (B, h, W C)
        return (columns[:, None] @ y.view(batch, grid[0], width, channels)).permute(0, 3, 1, 2)
    return rows[:, None] @ x @ columns[:, None].transpose(-2, -1)


def sides_before(crop: tuple[int, int], ratio: float) -> tuple[int, int]:
    """Size of images whose centre crop takes `ratio` of each side, rounded down as timm does: 224 of 0.875 is 256."""
    return int(crop[0] / ratio), int(crop[1] / ratio)


def check_fits(size: tuple[int, int], grid: tuple[int, int]) -> None:
    """Refuse a cut that is larger than what it is cut from."""
    (h, w), (height, width) = size, grid
    if not (0 < h <= height and 0 < w <= width):
        raise ConfigError(f"a crop of {h}x{w} does not fit a grid of {height}x{width}", "choose a smaller size")


@Augment.choices.add("random_resized_crop")
@dataclass(frozen=True)
class RandomResizedCrop(Stateless[Tensor]):
    """A box of whole positions, of random area and aspect, resized to a fixed grid by bicubic interpolation."""

    size: tuple[int, int] = (28, 28)
    area: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        check_ranges(self)

    def output(self, shape: Shape) -> Shape:
        """Of its own size."""
        return replace(shape, stage=self.gives or shape.stage, grid=self.size)

    def sample(self, draws: Draws, batch: Batch) -> Tensor:
        """Output-to-input maps, (B, 2, 3)."""
        u = draws.uniform("random_resized_crop", 4 * TRIES)
        rows, columns = (torch.full_like(u[:, 0], side) for side in batch.x.shape[-2:])
        top, left, height, width = random_boxes(u, rows, columns, self.area, self.aspect)
        return box_affine(top / rows, left / columns, height / rows, width / columns)

    def apply(self, batch: Batch, p: Tensor) -> Batch:
        """x: (B, C, H, W) to (B, C, h, w); columns follow."""
        columns = {name: column.warp(p, self.size) for name, column in batch.columns.items()}
        return batch.changed(x=warp_axes(batch.x, p, self.size), columns=columns)


@Augment.choices.add("whole_crop")
@dataclass(frozen=True)
class WholeCrop(RandomResizedCrop):
    """A random resized crop of the whole image at its own size: training cuts it while decoding.

    It comes first. Where only the middle square of an image is at hand, as in analyses, that is cropped.
    """

    stages: ClassVar[tuple[Stage, ...]] = ("pixels",)


@Augment.choices.add("centre_crop")
@dataclass(frozen=True)
class CentreCrop(Fixed):
    """The middle of the map, unscaled."""

    stages: ClassVar[tuple[Stage, ...]] = ("ids", "stacks", "map", "pixels")
    size: tuple[int, int] = (28, 28)

    def output(self, shape: Shape) -> Shape:
        """Of its own size; refuses a smaller input."""
        check_fits(self.size, shape.grid)
        return replace(shape, grid=self.size)

    def apply(self, batch: Batch, p: None) -> Batch:
        """x: (B, ..., H, W) to (B, ..., h, w); columns follow."""
        (height, width), (h, w) = batch.x.shape[-2:], self.size
        check_fits(self.size, (height, width))
        top, left = (height - h) // 2, (width - w) // 2
        fractions = torch.tensor([top / height, left / width, h / height, w / width], device=batch.x.device)
        affine = box_affine(*fractions.expand(len(batch.x), 4).unbind(1))
        columns = {name: column.warp(affine, self.size) for name, column in batch.columns.items()}
        return batch.changed(x=batch.x[..., top : top + h, left : left + w], columns=columns)
