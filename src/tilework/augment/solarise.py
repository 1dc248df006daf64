"""Random solarised images: bright values are inverted (BYOL; Grill et al., 2020; MoCo v3).

B batch | H, W pixels
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tilework.augment.augment import Augment, Stateless
from tilework.augment.rand_augment import whole_bytes
from tilework.core.batch import Batch, Stage
from tilework.core.bounds import check_shares
from tilework.core.rng import Draws


@Augment.choices.add("solarise")
@dataclass(frozen=True)
class Solarise(Stateless[Tensor]):
    """Values from `threshold` on become 255 minus themselves; comes before 'normalise'."""

    stages: ClassVar[tuple[Stage, ...]] = ("pixels",)
    probability: float = 0.2
    threshold: int = 128

    def __post_init__(self) -> None:
        check_shares(self, "probability")

    def sample(self, draws: Draws, batch: Batch) -> Tensor:
        """Which samples are solarised, (B,)."""
        return draws.uniform("solarise")[:, 0] < self.probability

    def apply(self, batch: Batch, p: Tensor) -> Batch:
        """x: (B, 3, H, W) bytes, or floats in [0, 255] that become whole numbers."""
        x = whole_bytes(batch.x)
        x = torch.where(p[:, None, None, None] & (x >= self.threshold), 255 - x, x)
        return batch.changed(x=x.to(batch.x.dtype))
