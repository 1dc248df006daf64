"""Random erasing: a box of noise (Zhong et al., 2020), with DeiT's settings.

B batch | C channels | H, W pixels
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from tilework.augment.augment import Augment, Stateless
from tilework.core.batch import Batch, Stage
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws


class Erasure(NamedTuple):
    """Where each sample is erased, and by what."""

    inside: Tensor  # (B, 1, H, W) bool
    noise: Tensor  # (B, C, H, W)


@Augment.choices.add("erase")
@dataclass(frozen=True)
class Erase(Stateless[Erasure]):
    """A box of random area and aspect replaced by standard normal noise; comes after 'normalise'.

    The box is drawn once and clipped where it does not fit; timm draws again up to ten times.
    """

    stages: ClassVar[tuple[Stage, ...]] = ("pixels",)
    probability: float = 0.25
    area: tuple[float, float] = (0.02, 1 / 3)
    aspect: tuple[float, float] = (0.3, 1 / 0.3)

    def sample(self, draws: Draws, batch: Batch) -> Erasure:
        """Boxes and noise. Samples read one stream of noise, each from a place of its own: their order is free."""
        if not batch.x.is_floating_point():
            raise ConfigError("augmentation 'erase' takes floats but gets bytes", "put it after 'normalise'")
        shape, pixels = batch.x.shape[1:], batch.x.shape[2] * batch.x.shape[3]
        u = draws.uniform("erase", 6)  # (B, 6): whether, area, aspect, top, left, noise
        area = (self.area[0] + (self.area[1] - self.area[0]) * u[:, 1]) * pixels
        low, high = (math.log(a) for a in self.aspect)
        side = torch.exp((low + (high - low) * u[:, 2]) / 2)  # root of width / height
        chosen = u[:, 0] < self.probability
        rows = _between(u[:, 3], area.sqrt() / side, shape[1])
        columns = _between(u[:, 4], area.sqrt() * side, shape[2])
        inside = chosen[:, None, None] & rows[:, :, None] & columns[:, None]
        count = shape.numel()
        stream = torch.randn(2 * count, dtype=batch.x.dtype, device=batch.x.device)
        noise = stream.unfold(0, count, 1).index_select(0, (u[:, 5] * count).long())
        return Erasure(inside[:, None], noise.view(-1, *shape))

    def apply(self, batch: Batch, p: Erasure) -> Batch:
        """x: (B, C, H, W) floats."""
        return batch.changed(x=torch.where(p.inside, p.noise, batch.x))


def _between(position: Tensor, length: Tensor, side: int) -> Tensor:
    """Which pixels of an axis lie in the box. position: (B,) in [0, 1); length: (B,) pixels; returns (B, side)."""
    at = torch.arange(side, device=position.device)
    length = length.round().clamp(max=side)
    start = (position * (side - length + 1)).floor()[:, None]
    return (at >= start) & (at < start + length[:, None])
