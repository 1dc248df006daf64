"""CutMix: a box of another sample pasted in, labels mixed by area (Yun et al., 2019).

B batch | H, W grid
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tilework.augment.augment import Augment
from tilework.core.batch import Batch, Mix
from tilework.core.rng import Draws


@Augment.choices.add("cutmix")
@dataclass(frozen=True)
class CutMix(Augment):
    """Boxes of uniformly distributed area (Beta(1, 1)) from the neighbour in the batch."""

    probability: float = 1.0

    def sample(self, draws: Draws, batch: Batch) -> Mix:
        """Partners, and own share on the input grid."""
        size, height, width = len(batch.x), batch.x.shape[-2], batch.x.shape[-1]
        u = draws.uniform("cutmix", 4)  # (B, 4): whether, area, centre
        side = torch.where(u[:, 0] < self.probability, u[:, 1].sqrt(), torch.zeros_like(u[:, 1]))
        rows, columns = (_inside(u[:, 2 + i], side, length) for i, length in enumerate((height, width)))
        own = 1 - (rows[:, :, None] * columns[:, None, :])  # (B, H, W)
        return Mix(torch.arange(size, device=batch.x.device).roll(1), own)

    def apply(self, batch: Batch, p: Mix) -> Batch:
        """x: (B, C, H, W); labels and columns follow."""
        columns = {name: column.mix(p) for name, column in batch.columns.items()}
        target = batch.target.mix(p.partner, p.own.mean((1, 2)))
        return batch.changed(x=p.apply(batch.x), target=target, columns=columns, mix=p)


def _inside(centre: Tensor, side: Tensor, length: int) -> Tensor:
    """Which places of an axis lie in the box, clipped at the border. centre, side: (B,) fractions; (B, length)."""
    at = torch.arange(length, device=centre.device)
    low = ((centre - side / 2) * length).round()[:, None]
    high = ((centre + side / 2) * length).round()[:, None]
    return ((at >= low) & (at < high)).float()
