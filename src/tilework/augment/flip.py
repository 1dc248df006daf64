"""Horizontal flip.

B batch | H, W grid
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tilework.augment.augment import Augment, Stateless
from tilework.core.batch import Batch
from tilework.core.bounds import check_shares
from tilework.core.rng import Draws


@Augment.choices.add("flip")
@dataclass(frozen=True)
class Flip(Stateless[Tensor]):
    """Mirror left and right with a probability."""

    mirrors: ClassVar[bool] = True
    probability: float = 0.5

    def __post_init__(self) -> None:
        check_shares(self, "probability")

    def sample(self, draws: Draws, batch: Batch) -> Tensor:
        """Which samples flip, (B,)."""
        return draws.uniform("flip")[:, 0] < self.probability

    def apply(self, batch: Batch, p: Tensor) -> Batch:
        """x: (B, C, H, W); columns follow."""
        affine = torch.eye(2, 3, device=batch.x.device).repeat(len(batch.x), 1, 1)
        affine[:, 0, 0] = torch.where(p, -1.0, 1.0)
        grid = (batch.x.shape[-2], batch.x.shape[-1])
        columns = {name: column.warp(affine, grid) for name, column in batch.columns.items()}
        return batch.changed(x=torch.where(p[:, None, None, None], batch.x.flip(-1), batch.x), columns=columns)
