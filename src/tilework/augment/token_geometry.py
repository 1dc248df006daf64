"""Geometry of codes that stay codes, for objectives that predict them (SeiT++, appendix C: masked token modelling).

B batch | n samples adapted | C code dim | H, W code grid | h, w output grid
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from tilework.augment.adapter import Adapter
from tilework.augment.affine import Geometry
from tilework.augment.augment import CPU, Augment, Stateless, Step, need_vectors
from tilework.augment.crop import RandomResizedCrop, check_fits
from tilework.augment.embed import look_up
from tilework.augment.requantise import nearest_codes
from tilework.augment.token_crop import crop_codes
from tilework.core.affine import box_affine
from tilework.core.artefact import artefact
from tilework.core.batch import Batch, Shape, Stage
from tilework.core.bounds import check_ranges
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws


@Augment.choices.add("code_cut")
@dataclass(frozen=True)
class CodeCut(Stateless[Tensor]):
    """A box of whole codes at a random position, neither scaled nor interpolated."""

    stages: ClassVar[tuple[Stage, ...]] = ("ids",)
    size: tuple[int, int] = (28, 28)

    def output(self, shape: Shape) -> Shape:
        """Of its own size; refuses a smaller input."""
        check_fits(self.size, shape.grid)
        return replace(shape, grid=self.size)

    def sample(self, draws: Draws, batch: Batch) -> Tensor:
        """Top and left of each box, (B, 2)."""
        (height, width), (h, w) = batch.x.shape[1:], self.size
        check_fits(self.size, (height, width))
        u = draws.uniform("code_cut", 2)
        return torch.stack([u[:, 0] * (height - h + 1), u[:, 1] * (width - w + 1)], 1).long()

    def affine(self, p: Tensor, grid: tuple[int, int]) -> Tensor:
        """The boxes as output-to-input maps, (B, 2, 3)."""
        (height, width), (h, w) = grid, self.size
        top, left = p[:, 0] / height, p[:, 1] / width
        return box_affine(top, left, torch.full_like(top, h / height), torch.full_like(left, w / width))

    def apply(self, batch: Batch, p: Tensor) -> Batch:
        """x: (B, H, W) to (B, h, w); columns follow."""
        height, width = batch.x.shape[1:]
        h, w = self.size
        rows = p[:, :1] + torch.arange(h, device=p.device)  # (B, h)
        columns = p[:, 1:] + torch.arange(w, device=p.device)  # (B, w)
        image = torch.arange(len(batch.x), device=p.device)[:, None, None]
        affine = self.affine(p, (height, width))
        moved = {name: column.warp(affine, self.size) for name, column in batch.columns.items()}
        return batch.changed(x=batch.x[image, rows[:, :, None], columns[:, None, :]], columns=moved)


@dataclass(frozen=True)
class Moving:
    """Where each sample goes: the first ones through the network, the others as codes."""

    affine: Tensor  # (n, 2, 3)
    box: Tensor | None  # (B - n, 2, 3); None: the others stay where they are


@Augment.choices.add("token_geometry")
@dataclass(frozen=True)
class TokenGeometry(Augment):
    """Crop, turn and flip as of pixels, through TokenAdapt, for a share of every batch.

    The rest is cropped and resized as code vectors; the nearest codes are taken.
    """

    stages: ClassVar[tuple[Stage, ...]] = ("ids",)
    adapter: str = artefact("adapter")  # directory of a trained TokenAdapt
    share: float = 0.5
    size: tuple[int, int] = (28, 28)
    geometry: Geometry = field(default_factory=Geometry)
    area: tuple[float, float] = (0.2, 1.0)  # of crops of the others; (1, 1): they stay as they are

    def __post_init__(self) -> None:
        check_ranges(self, aspect="")
        if not 0 <= self.share <= 1:
            raise ValueError(f"share is {self.share} but must lie between 0 and 1")

    def output(self, shape: Shape) -> Shape:
        """Of its own size."""
        if self.stays and shape.grid != self.size:
            found, wanted = (f"{grid[0]}x{grid[1]}" for grid in (shape.grid, self.size))
            raise ConfigError(f"'token_geometry' leaves {found} codes as they are, but must give {wanted}", "set size")
        return replace(shape, grid=self.size)

    @property
    def stays(self) -> bool:
        """Whether the others stay as they are."""
        return self.area == (1.0, 1.0)

    def build(self, codebook: Codebook | None = None, device: torch.device = CPU) -> MoveCodes:
        """With its network, for the codes of the data."""
        return MoveCodes(self, Adapter.open(Path(self.adapter), need_vectors(codebook, self), device))


@dataclass(frozen=True, eq=False)
class MoveCodes(Step[Moving]):
    """Geometry of codes through a trained TokenAdapt."""

    config: TokenGeometry
    move: Adapter

    def sample(self, draws: Draws, batch: Batch) -> Moving:
        """Positions of every sample."""
        count = round(self.config.share * len(batch.x))
        first, rest = (replace(draws, index=draws.index[part]) for part in (slice(count), slice(count, None)))
        box = None if self.config.stays else RandomResizedCrop(area=self.config.area).sample(rest, batch)
        return Moving(self.config.geometry.sample(first, batch), box)

    @torch.no_grad()
    def apply(self, batch: Batch, p: Moving) -> Batch:
        """x: (B, H, W) to (B, h, w); columns follow."""
        count, size = len(p.affine), self.config.size
        z = look_up(batch.x[:count], self.move.vectors)
        moved = self.move(z, p.affine, size)
        others = batch.x[count:]
        if p.box is None:
            rest, box = others, torch.eye(2, 3, device=others.device).repeat(len(others), 1, 1)
        else:
            rest = nearest_codes(crop_codes(others.int(), self.move.vectors, p.box, size), self.move.vectors)
            box = p.box
        affine = torch.cat([p.affine, box])
        columns = {name: column.warp(affine, size) for name, column in batch.columns.items()}
        return batch.changed(x=torch.cat([moved, rest]).to(batch.x.dtype), columns=columns)
