"""Crop, flip, rotation, translation and shear as one map from output to input positions, for images and for maps.

B batch | C channels | H, W input grid | h, w output grid
"""

from __future__ import annotations

from dataclasses import dataclass
from math import radians

import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.augment.crop import RandomResizedCrop
from tilework.core.affine import follow
from tilework.core.batch import Batch
from tilework.core.bounds import check_ranges, check_shares
from tilework.core.rng import Draws


@dataclass(frozen=True)
class Geometry:
    """How far pixels may move (SeiT++, appendix C: DeiT's crop and flip, and an affine map)."""

    area: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    crop: float = 1.0  # probabilities
    flip: float = 0.5
    turn: float = 0.5  # of the affine map
    rotate: float = 30.0  # degrees, to either side
    translate: float = 0.2  # of the side
    shear: float = 15.0  # degrees

    def __post_init__(self) -> None:
        check_shares(self, "crop", "flip", "turn")
        check_ranges(self)

    def sample(self, draws: Draws, batch: Batch) -> Tensor:
        """Output-to-input maps, (B, 2, 3): first crop, then turn, then flip."""
        u = draws.uniform("geometry", 7)  # (B, 7): whether crop, flip, turn; angle, shifts, shear
        whole, ratio = torch.eye(2, 3, device=u.device), batch.x.shape[-2] / batch.x.shape[-1]
        boxes = RandomResizedCrop(area=self.area, aspect=self.aspect).sample(draws, batch)
        cut = torch.where((u[:, 0] < self.crop)[:, None, None], boxes, whole)
        turned = torch.where((u[:, 2] < self.turn)[:, None, None], self._turn(2 * u[:, 3:] - 1, ratio), whole)
        mirror = whole.repeat(len(u), 1, 1)
        mirror[:, 0, 0] = 1 - 2 * (u[:, 1] < self.flip).float()
        return follow(follow(cut, turned), mirror)

    def _turn(self, v: Tensor, ratio: float = 1.0) -> Tensor:
        """Rotation, shear along the rows, and shift. v: (B, 4) in [-1, 1); ratio: height to width of the map."""
        angle, shear = v[:, 0] * radians(self.rotate), (v[:, 3] * radians(self.shear)).tan()
        cos, sin = angle.cos(), angle.sin()
        shift = v[:, 1:3] * (2 * self.translate)  # the side is 2 long
        right, left = ratio * (cos * shear - sin), sin / ratio
        rows = [torch.stack([cos, right], -1), torch.stack([left, sin * shear + cos], -1)]
        return torch.cat([torch.stack(rows, 1), shift[..., None]], -1)


def warp(x: Tensor, affine: Tensor, grid: tuple[int, int]) -> Tensor:
    """Resample by bilinear interpolation, the border repeated. x: (B, C, H, W); returns (B, C, h, w)."""
    if not len(x):  # torch refuses to
        return x.new_empty(0, x.shape[1], *grid)
    places = F.affine_grid(affine, [len(x), x.shape[1], *grid], align_corners=False)
    return F.grid_sample(x, places.to(x.dtype), padding_mode="border", align_corners=False)
