"""Emb-Noise: noise on code vectors that shifts colours and blurs details (SeiT, section 3).

B batch | n samples with noise | C code dim | H, W grid
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tilework.augment.augment import Augment
from tilework.core.batch import Batch, Stage
from tilework.core.rng import Draws


@dataclass(frozen=True)
class Noise:
    """What is added to some samples."""

    rows: Tensor  # (n,) which
    values: Tensor  # (n, C, H, W)


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

    def sample(self, draws: Draws, batch: Batch) -> Noise:
        """The noise; on a CPU of the chosen samples alone, elsewhere of all: counting would wait for the device."""
        chosen = draws.uniform("embedding_noise")[:, 0] < self.probability  # (B,)
        counted = batch.x.device.type == "cpu"
        rows = chosen.nonzero()[:, 0] if counted else torch.arange(len(chosen), device=chosen.device)
        _, channels, height, width = batch.x.shape
        dense = torch.randn(len(rows), height, width, channels, device=rows.device)  # as code maps lie in memory
        dense.add_(torch.randn(len(rows), 1, 1, channels, device=rows.device))
        scale = chosen[rows, None, None, None] * self.scale
        return Noise(rows, (dense if counted and self.scale == 1 else dense.mul_(scale)).permute(0, 3, 1, 2))

    def apply(self, batch: Batch, p: Noise) -> Batch:
        """x: (B, C, H, W)."""
        x = batch.x.permute(0, 2, 3, 1)
        flat = x.flatten(1).index_add(0, p.rows, p.values.permute(0, 2, 3, 1).flatten(1))  # quick on whole blocks
        return batch.changed(x=flat.view(x.shape).permute(0, 3, 1, 2))
