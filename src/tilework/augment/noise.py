"""Emb-Noise: noise on code vectors that shifts colours and blurs details (SeiT, section 3).

B batch | C code dim | H, W grid
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tilework.augment.augment import Augment
from tilework.core.batch import Batch, Stage
from tilework.core.rng import Draws


@Augment.choices.add("embedding_noise")
@dataclass(frozen=True)
class EmbeddingNoise(Augment):
    """x + n_c + n with a probability: n_c ~ N(0, 1) per channel, n ~ N(0, 1) per element.

    Chosen once per sample; the published code chooses twice, for the batch and then for half of it.
    """

    stages: ClassVar[tuple[Stage, ...]] = ("map",)
    dense: ClassVar[bool] = True
    probability: float = 0.5
    scale: float = 1.0  # deviation of both

    def sample(self, draws: Draws, batch: Batch) -> Tensor:
        """The noise, (B, C, H, W); zero for samples left alone."""
        chosen = (draws.uniform("embedding_noise")[:, 0] < self.probability) * self.scale  # (B,)
        size, channels, height, width = batch.x.shape
        per_channel = torch.randn(size, 1, 1, channels, device=batch.x.device)
        dense = torch.randn(size, height, width, channels, device=batch.x.device)  # as code maps lie in memory
        return dense.add_(per_channel).mul_(chosen[:, None, None, None]).permute(0, 3, 1, 2)

    def apply(self, batch: Batch, p: Tensor) -> Batch:
        """x: (B, C, H, W)."""
        return batch.changed(x=batch.x + p)
