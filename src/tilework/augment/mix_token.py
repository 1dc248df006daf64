"""MixToken: tokens of two images in one sequence, after the stem (LV-ViT, section 3.2).

B batch | h, w token grid
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tilework.augment.augment import Augment, Stateless
from tilework.core.batch import Batch, Mix
from tilework.core.bounds import check_shares
from tilework.core.rng import Draws, uniform


@Augment.choices.add("mix_token")
@dataclass(frozen=True)
class MixToken(Stateless[Mix]):
    """One box of tokens for the whole batch comes from the sample at the mirrored position; the model mixes its tokens.

    lambda ~ Beta(1, 1); sides int(g sqrt(1 - lambda)) around a random position, clipped; labels go by what is left.
    """

    grid: tuple[int, int] = (14, 14)  # of the model's tokens
    probability: float = 1.0  # of a batch

    def __post_init__(self) -> None:
        check_shares(self, "probability")

    def sample(self, draws: Draws, batch: Batch) -> Mix:
        """Partners and own shares on the token grid; drawn on the host, from the step alone."""
        u = uniform(draws.seed, draws.epoch, np.array([draws.step]), "mix_token", 4)[0].tolist()
        own = np.ones(self.grid, np.float32)
        if u[0] < self.probability:
            cuts = []
            for side, position in zip(self.grid, u[2:], strict=True):
                length, centre = int(side * (1 - u[1]) ** 0.5), int(position * side)
                cuts.append(slice(max(0, centre - length // 2), min(side, centre + length // 2)))
            own[cuts[0], cuts[1]] = 0
        device = batch.x.device
        partner = torch.arange(len(batch.x) - 1, -1, -1, device=device)
        return Mix(partner, torch.from_numpy(own).to(device).expand(len(batch.x), *self.grid), after_stem=True)

    def apply(self, batch: Batch, p: Mix) -> Batch:
        """The input stays; labels and columns follow."""
        columns = {name: column.mix(p) for name, column in batch.columns.items()}
        return batch.changed(target=batch.target.mix(p.partner, p.own.mean((1, 2))), columns=columns, mix=p)
