"""Random mixing: patches at random come from another image, as MAE hides them (TL-Align, section B).

B batch | h, w grid of patches
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tilework.augment.augment import Augment
from tilework.augment.mixing import sample_beta
from tilework.augment.patch_mixing import PatchMixing
from tilework.core.rng import Draws


@Augment.choices.add("random_mix")
@dataclass(frozen=True)
class RandomMix(PatchMixing):
    """The neighbour's patches lie anywhere."""

    def pasted(self, draws: Draws, grid: tuple[int, int]) -> Tensor:
        """One on as many positions of a random order as the share asks for."""
        places = grid[0] * grid[1]
        count = (sample_beta(draws, "random_mix", self.alpha) * places).round()  # (B,)
        rank = draws.uniform("random_mix", places).argsort(1).argsort(1)
        return (rank < count[:, None]).float().unflatten(1, grid)
