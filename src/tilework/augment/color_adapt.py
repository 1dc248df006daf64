"""ColorAdapt: a code map in the colours of another one (SeiT++, eq. 4).

B batch | C code dim | H, W grid
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tilework.augment.augment import Augment, Stateless
from tilework.augment.noise import KeyedNoise, Noise, add_noise, code_deviation, sample_noise
from tilework.core.batch import Batch, Stage
from tilework.core.rng import Draws

SMALLEST = 1e-6  # deviation, so that a channel that is constant stays constant


def adapt_colour(x: Tensor, other: Tensor) -> Tensor:
    """Eq. 4: x whitened by its own mean and deviation over space, coloured by those of another. Each (B, C, H, W)."""
    deviation, mean = torch.std_mean(x, (2, 3), correction=0, keepdim=True)
    target_deviation, target_mean = torch.std_mean(other, (2, 3), correction=0, keepdim=True)
    return (x - mean) * (target_deviation / deviation.clamp(min=SMALLEST)) + target_mean


@dataclass(frozen=True)
class Colours:
    """What happens to each sample."""

    noise: Noise | KeyedNoise
    adapted: Tensor  # (B,) which take the colours of their neighbour


@Augment.choices.add("token_colour")
@dataclass(frozen=True)
class TokenColour(Stateless[Colours]):
    """One of: Emb-Noise, ColorAdapt with the neighbour in the batch, nothing."""

    stages: ClassVar[tuple[Stage, ...]] = ("map",)
    dense: ClassVar[bool] = True
    noise: float = 0.5  # probability of a sample; 0: off
    adapt: float = 0.25  # probability of a sample; 0: off

    def needs_grid(self) -> bool:
        """Channels change alike everywhere."""
        return False

    def __post_init__(self) -> None:
        if min(self.noise, self.adapt) < 0 or self.noise + self.adapt > 1:
            raise ValueError(f"noise {self.noise} and adapt {self.adapt} are no probabilities of exclusive choices")

    def draw(self, draws: Draws, shape: tuple[int, int, int], deviation: float) -> Colours:
        """Which change each sample gets. shape: C, H, W; deviation: of the code vectors."""
        u = draws.uniform("token_colour")[:, 0]
        adapted = (u >= self.noise) & (u < self.noise + self.adapt)
        return Colours(sample_noise(u < self.noise, shape, deviation), adapted)

    def change(self, x: Tensor, p: Colours) -> Tensor:
        """x: (B, C, H, W); the colours are those of the neighbours before any change."""
        if self.adapt and len(x):
            x = torch.where(p.adapted[:, None, None, None], adapt_colour(x, x.roll(1, 0)), x)
        return add_noise(x, p.noise) if self.noise else x

    def sample(self, draws: Draws, batch: Batch) -> Colours:
        """See `draw`."""
        return self.draw(draws, (batch.x.shape[1], *batch.x.shape[2:]), code_deviation(batch))

    def apply(self, batch: Batch, p: Colours) -> Batch:
        """See `change`."""
        return batch.changed(x=self.change(batch.x, p))
