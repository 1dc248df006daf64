"""Horizontal flip of DCT coefficients, exact: blocks change places, and odd horizontal frequencies their sign.

B batch | G codes of a position | H, W blocks | K values
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tilework.augment.augment import CPU, Augment, Step
from tilework.augment.flip import Flip
from tilework.core.batch import Batch, Stage
from tilework.core.bounds import check_shares
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.tokenizers.dct import SIDE, ZIGZAG


@Augment.choices.add("dct_flip")
@dataclass(frozen=True)
class DctFlip(Augment):
    """Mirror left and right with a probability."""

    stages: ClassVar[tuple[Stage, ...]] = ("stacks",)
    probability: float = 0.5

    def __post_init__(self) -> None:
        check_shares(self, "probability")

    def build(self, codebook: Codebook | None = None, device: torch.device = CPU) -> MirrorBlocks:
        """With the code of every opposite value."""
        if codebook is None or not 3 <= codebook.code_dim <= 3 * SIDE**2 or codebook.code_dim % 3:
            raise ConfigError("augmentation 'dct_flip' needs DCT coefficients", "train on a store of tokenizer 'dct'")
        value = torch.from_numpy(codebook.vectors[:, 0].copy()).to(device)
        return MirrorBlocks(Flip(self.probability), (value[:, None] + value).abs().argmin(1))


@dataclass(frozen=True, eq=False)
class MirrorBlocks(Step[Tensor]):
    """Flip of coefficients."""

    flip: Flip
    opposite: Tensor  # (K,) code of -value

    def sample(self, draws: Draws, batch: Batch) -> Tensor:
        """Which samples flip, (B,)."""
        return self.flip.sample(draws, batch)

    def apply(self, batch: Batch, p: Tensor) -> Batch:
        """x: (B, G, H, W); columns follow."""
        x = batch.x
        odd = torch.tensor([column % 2 == 1 for _, column in ZIGZAG[: x.shape[1] // 3]] * 3, device=x.device)
        turned = torch.where(odd[:, None, None], self.opposite[x.long()].to(x.dtype), x)
        moved = self.flip.apply(batch.changed(x=turned), p)  # positions and columns
        return moved.changed(x=torch.where(p[:, None, None, None], moved.x, x))
