"""Token-RRC from codes to a cropped code map in one go (SeiT, section 3).

The paper resizes one-hot maps and multiplies by the codebook. Both are linear: every output position is a weighted sum
of a few code vectors: four rows of the grid for each row, then four positions of the result for each column.

B batch | H, W code grid | K codes | C code dim | h, w output grid
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.augment.augment import CPU, Augment, Step, need_vectors
from tilework.augment.compiled import kernels_for, over_samples
from tilework.augment.crop import RandomResizedCrop, interpolation_taps, warp_axes
from tilework.augment.embed import deviation_of, look_up, model_table
from tilework.core.batch import Batch, Shape, Stage
from tilework.core.bounds import check_ranges
from tilework.core.codebook import Codebook
from tilework.core.rng import Draws


def crop_codes(ids: Tensor, table: Tensor, affine: Tensor, grid: tuple[int, int]) -> Tensor:
    """Code vectors of a crop, resized by bicubic interpolation.

    ids: (B, H, W) or (B, C, H, W); table: (K, C); affine: (B, 2, 3) without rotation or shear; returns
    (B, C, h, w), channels lying together in memory.
    """
    if ids.ndim == 4:  # several codes at a position: too many for sums of them
        return warp_axes(look_up(ids, table), affine, grid)
    ids = ids.int()  # as stores give them
    batch, height, width = ids.shape
    h, w = grid
    if fast := kernels_for(ids, table, affine):
        out = torch.empty(batch, h, w, table.shape[1])
        over_samples(fast.crop, (ids, affine, out), table)
        return out.permute(0, 3, 1, 2)
    rows, row_weights = interpolation_taps(affine[:, 1, 1], affine[:, 1, 2], height, h)  # (B, h, 4)
    columns, column_weights = interpolation_taps(affine[:, 0, 0], affine[:, 0, 2], width, w)  # (B, w, 4)
    image = torch.arange(batch, device=ids.device)[:, None, None]
    lines = ids.reshape(batch * height, width).index_select(0, (image * height + rows).view(-1))  # (B h 4, W)
    bags = lines.view(batch, h, 4, width).transpose(2, 3).reshape(-1, 4)
    weights = row_weights[:, :, None].expand(-1, -1, width, -1).reshape(-1, 4)
    y = F.embedding_bag(bags, table, mode="sum", per_sample_weights=weights)  # (B h W, C)
    line = torch.arange(batch * h, device=ids.device, dtype=ids.dtype).view(batch, h, 1, 1)
    bags = (line * width + columns[:, None].to(ids.dtype)).view(-1, 4)
    weights = column_weights[:, None].expand(-1, h, -1, -1).reshape(-1, 4)
    y = F.embedding_bag(bags, y, mode="sum", per_sample_weights=weights)  # (B h w, C)
    return y.view(batch, h, w, table.shape[1]).permute(0, 3, 1, 2)


@Augment.choices.add("token_crop")
@dataclass(frozen=True)
class TokenCrop(Augment):
    """A random resized crop that takes codes and gives code vectors: 'embed' and 'random_resized_crop' in one."""

    stages: ClassVar[tuple[Stage, ...]] = ("ids", "stacks")
    gives: ClassVar[Stage | None] = "map"
    size: tuple[int, int] = (28, 28)
    area: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    standardise: bool = False  # as in 'embed'

    def __post_init__(self) -> None:
        check_ranges(self)

    def output(self, shape: Shape) -> Shape:
        """A code map of its own size."""
        return replace(shape, stage="map", grid=self.size)

    def build(self, codebook: Codebook | None = None, device: torch.device = CPU) -> CropCodes:
        """With the vectors of a codebook."""
        known, crop = need_vectors(codebook, self), RandomResizedCrop(self.size, self.area, self.aspect)
        return CropCodes(crop, model_table(known, self.standardise, device), known.deviation(self.standardise))


@dataclass(frozen=True, eq=False)
class CropCodes(Step[Tensor]):
    """Codes to the code vectors of a crop."""

    crop: RandomResizedCrop
    table: Tensor  # (K, C)
    deviation: float  # of it

    def sample(self, draws: Draws, batch: Batch) -> Tensor:
        """Output-to-input maps, (B, 2, 3)."""
        return self.crop.sample(draws, batch)

    def apply(self, batch: Batch, p: Tensor) -> Batch:
        """x: (B, H, W) or (B, C, H, W) codes to (B, C, h, w); columns follow."""
        columns = {name: column.warp(p, self.crop.size) for name, column in batch.columns.items()}
        x = crop_codes(batch.x, self.table, p, self.crop.size)
        return batch.changed(x=x, columns=columns, deviation=deviation_of(batch.x, self.deviation, self.table.shape[1]))
