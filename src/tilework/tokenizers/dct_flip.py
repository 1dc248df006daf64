"""Horizontal flip of DCT coefficients, exact: blocks change places, and odd horizontal frequencies their sign.

B batch | G codes of a place | H, W blocks | K values
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from tilework.augment.augment import Augment
from tilework.augment.flip import Flip
from tilework.core.batch import Batch, Stage
from tilework.core.errors import ConfigError
from tilework.tokenizers.dct import SIDE, ZIGZAG


@Augment.choices.add("dct_flip")
@dataclass(frozen=True)
class DctFlip(Flip):
    """Mirror left and right with a probability."""

    stages: ClassVar[tuple[Stage, ...]] = ("stacks",)
    mirrors: ClassVar[bool] = False
    opposite: Tensor | None = field(default=None, init=False, repr=False, compare=False)  # (K,) code of -value

    def bind(self, codebook: Tensor | None, table: Tensor | None = None) -> DctFlip:
        """The same step with the codes of the data."""
        if codebook is None or not 3 <= codebook.shape[1] <= 3 * SIDE**2 or codebook.shape[1] % 3:
            raise ConfigError("augmentation 'dct_flip' needs DCT coefficients", "train on a store of tokenizer 'dct'")
        bound, value = replace(self), codebook[:, 0]
        object.__setattr__(bound, "opposite", (value[:, None] + value).abs().argmin(1))
        return bound

    def apply(self, batch: Batch, p: Tensor) -> Batch:
        """x: (B, G, H, W); columns follow."""
        if self.opposite is None:
            raise ConfigError("augmentation 'dct_flip' was not given a codebook", "call bind(codebook) first")
        x = batch.x
        odd = torch.tensor([column % 2 == 1 for _, column in ZIGZAG[: x.shape[1] // 3]] * 3, device=x.device)
        turned = torch.where(odd[:, None, None], self.opposite[x.long()].to(x.dtype), x)
        moved = super().apply(batch.changed(x=turned), p)  # places and columns
        return moved.changed(x=torch.where(p[:, None, None, None], moved.x, x))
