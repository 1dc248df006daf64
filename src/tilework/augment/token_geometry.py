"""Geometry of codes that stay codes, for objectives that predict them (SeiT++, appendix C: masked token modelling).

B batch | n samples adapted | C code dim | H, W code grid | h, w output grid
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.augment.adapter import Adapter
from tilework.augment.affine import Geometry
from tilework.augment.augment import Augment
from tilework.augment.crop import box_affine
from tilework.core.batch import Batch, Stage
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws


@Augment.choices.add("code_cut")
@dataclass(frozen=True)
class CodeCut(Augment):
    """A box of whole codes at a random place, neither scaled nor interpolated."""

    stages: ClassVar[tuple[Stage, ...]] = ("ids",)
    size: tuple[int, int] = (28, 28)

    def sample(self, draws: Draws, batch: Batch) -> Tensor:
        """Top and left of each box, (B, 2)."""
        (height, width), (h, w) = batch.x.shape[1:], self.size
        if not (0 < h <= height and 0 < w <= width):
            raise ConfigError(f"a cut of {h}x{w} does not fit a grid of {height}x{width}", "choose a smaller size")
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
    cut: Tensor  # (B - n, 2)


@Augment.choices.add("token_geometry")
@dataclass(frozen=True)
class TokenGeometry(Augment):
    """Crop, turn and flip as of pixels, through TokenAdapt, for a share of every batch; 'code_cut' for the rest."""

    stages: ClassVar[tuple[Stage, ...]] = ("ids",)
    adapter: str = ""  # directory of a trained TokenAdapt
    share: float = 0.5
    size: tuple[int, int] = (28, 28)
    geometry: Geometry = field(default_factory=Geometry)
    move: Adapter | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share is {self.share} but must lie between 0 and 1")

    def bind(self, codebook: Tensor | None, table: Tensor | None = None) -> TokenGeometry:
        """The same step with its network, for the codebook of the data."""
        bound = replace(self)
        object.__setattr__(bound, "move", Adapter.open(Path(self.adapter), codebook))
        return bound

    def sample(self, draws: Draws, batch: Batch) -> Moving:
        """Places of every sample."""
        count = round(self.share * len(batch.x))
        first, rest = (replace(draws, index=draws.index[part]) for part in (slice(count), slice(count, None)))
        return Moving(self.geometry.sample(first, batch), CodeCut(self.size).sample(rest, batch))

    def apply(self, batch: Batch, p: Moving) -> Batch:
        """x: (B, H, W) to (B, h, w); columns follow."""
        if self.move is None:
            raise ConfigError("augmentation 'token_geometry' was not given a codebook", "call bind(codebook) first")
        count = len(p.affine)
        z = F.embedding(batch.x[:count].long(), self.move.codebook).permute(0, 3, 1, 2)
        moved = self.move(z, p.affine, self.size).to(batch.x.dtype)
        cut = CodeCut(self.size)
        rest = cut.apply(batch.changed(x=batch.x[count:], columns={}), p.cut).x
        affine = torch.cat([p.affine, cut.affine(p.cut, (batch.x.shape[1], batch.x.shape[2]))])
        columns = {name: column.warp(affine, self.size) for name, column in batch.columns.items()}
        return batch.changed(x=torch.cat([moved, rest]), columns=columns)
