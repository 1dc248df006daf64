"""Mixtures of whole patches, so that no token has two sources before the first block (TL-Align, section B).

B batch | H, W grid of pixels or codes | h, w grid of patches
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tilework.augment.augment import Augment
from tilework.augment.mixing import CutMix, Mixing, sample_beta
from tilework.core.bounds import check_positive, check_shares
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws


@dataclass(frozen=True)
class PatchMixing(Mixing):
    """Every patch is the sample's own or its neighbour's; subclasses say which, how many comes from Beta(alpha, alpha).

    patch: side of a token of the model, in pixels or in codes.
    """

    patch: int = 16
    probability: float = 1.0
    alpha: float = 1.0

    def __post_init__(self) -> None:
        check_shares(self, "probability")
        check_positive(self, "alpha")
        if self.patch < 1:
            raise ValueError(f"patch is {self.patch} but must be at least 1")

    def pasted(self, draws: Draws, grid: tuple[int, int]) -> Tensor:
        """Which patches come from the neighbour, (B, h, w) of 0 and 1."""
        raise NotImplementedError

    def own(self, draws: Draws, grid: tuple[int, int]) -> Tensor:
        """One on own patches, zero on others, (B, H, W)."""
        if grid[0] % self.patch or grid[1] % self.patch:
            raise ConfigError(
                f"a grid of {grid[0]}x{grid[1]} does not divide into patches of {self.patch}",
                "set patch to what one token of the model covers",
            )
        pasted = self.pasted(draws, (grid[0] // self.patch, grid[1] // self.patch))
        mixed = draws.uniform("patch_mixing")[:, :, None] < self.probability
        own = torch.where(mixed, 1 - pasted, 1.0)
        return own.repeat_interleave(self.patch, 1).repeat_interleave(self.patch, 2)


@Augment.choices.add("patch_cutmix")
@dataclass(frozen=True)
class PatchCutMix(PatchMixing):
    """CutMix whose box is rounded to patches."""

    even: bool = False  # sides rounded down to even numbers of patches, as published: a mean area of 0.27, not 0.32

    def pasted(self, draws: Draws, grid: tuple[int, int]) -> Tensor:
        """One inside the box."""
        if not self.even:
            return 1 - CutMix(1.0, self.alpha).own(draws, grid)
        u = draws.uniform("cutmix", 4)  # (B, 4): unused, area, centre
        side = (u[:, 1] if self.alpha == 1 else sample_beta(draws, "cutmix", self.alpha)).sqrt()
        rows, columns = (_even_side(u[:, 2 + i], side, length) for i, length in enumerate(grid))
        return rows[:, :, None] * columns[:, None, :]


def _even_side(centre: Tensor, side: Tensor, length: int) -> Tensor:
    """Which patches of an axis lie in the box, clipped at the border. centre, side: (B,) fractions; (B, length)."""
    at, middle = torch.arange(length, device=centre.device), (centre * length).floor()[:, None]
    half = ((side * length).floor() / 2).floor()[:, None]
    return ((at >= middle - half) & (at < middle + half)).float()
