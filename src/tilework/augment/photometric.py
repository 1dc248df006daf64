"""Photometric distortion: brightness, contrast, saturation and hue, each at random (SSD; Liu et al., 2016).

B batch | H, W pixels
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from tilework.augment.augment import Augment, Stateless
from tilework.core.batch import Batch, Stage
from tilework.core.rng import Draws


class Distortion(NamedTuple):
    """What happens to each sample, (B,) each; neutral where nothing does."""

    brightness: Tensor  # added
    contrast: Tensor  # factor
    first: Tensor  # whether contrast comes before saturation and hue
    saturation: Tensor  # factor
    hue: Tensor  # turns of the circle, added


@Augment.choices.add("photometric")
@dataclass(frozen=True)
class Photometric(Stateless[Distortion]):
    """Each change with probability 0.5, contrast first or last by a coin; comes before 'normalise'.

    As mmsegmentation, in floats where it rounds to bytes between the changes.
    """

    stages: ClassVar[tuple[Stage, ...]] = ("pixels",)
    brightness: float = 32.0  # of 255, to either side
    contrast: tuple[float, float] = (0.5, 1.5)
    saturation: tuple[float, float] = (0.5, 1.5)
    hue: float = 36.0  # degrees, to either side

    def needs_grid(self) -> bool:
        """Every pixel changes by itself."""
        return False

    def sample(self, draws: Draws, batch: Batch) -> Distortion:
        """Whether and how much."""
        u = draws.uniform("photometric", 9)
        applied = [u[:, i] < 0.5 for i in range(4)]

        def between(low: float, high: float, i: int, neutral: float) -> Tensor:
            return torch.where(applied[i], low + (high - low) * u[:, 4 + i], neutral)

        return Distortion(
            between(-self.brightness, self.brightness, 0, 0.0),
            between(*self.contrast, 1, 1.0),
            u[:, 8] < 0.5,
            between(*self.saturation, 2, 1.0),
            between(-self.hue / 360, self.hue / 360, 3, 0.0),
        )

    def apply(self, batch: Batch, p: Distortion) -> Batch:
        """x: (B, 3, H, W) in [0, 255], bytes or floats; returns floats."""
        brightness, contrast, saturation, hue = (
            part[:, None, None, None] for part in (p.brightness, p.contrast, p.saturation, p.hue)
        )
        first = p.first[:, None, None, None]
        x = (batch.x.float() + brightness).clamp(0, 255)
        x = (x * torch.where(first, contrast, 1.0)).clamp(0, 255)
        x = shift_colours(x, saturation, hue)
        return batch.changed(x=(x * torch.where(first, 1.0, contrast)).clamp(0, 255))


def shift_colours(x: Tensor, saturation: Tensor, hue: Tensor) -> Tensor:
    """Saturation multiplied, at most 1, and hue turned, in HSV. x: (B, 3, H, W) in [0, 255]; others (B, 1, 1, 1)."""
    high, low = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    span = high - low
    red, green, blue = x.split(1, 1)
    safe = span.clamp(min=1e-6)
    turn = torch.where(high == red, (green - blue) / safe, (blue - red) / safe + 2)
    turn = torch.where((high == blue) & (high != red) & (high != green), (red - green) / safe + 4, turn)
    turn = torch.where(span > 0, turn, 0.0) / 6 + hue
    chroma = (saturation * span / high.clamp(min=1e-6)).clamp(max=1) * high
    offset = torch.tensor([5.0, 3.0, 1.0], device=x.device).view(3, 1, 1)
    k = (offset + 6 * turn) % 6
    return high - chroma * torch.minimum(k, 4 - k).clamp(0, 1)
