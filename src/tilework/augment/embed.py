"""Codes to code vectors: the frozen codebook as a step of the input (SeiT).

B batch | H, W code grid | K codes | C code dim
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional as F

from tilework.augment.augment import Augment
from tilework.core.batch import Batch, Stage
from tilework.core.errors import ConfigError


@Augment.choices.add("embed")
@dataclass(frozen=True)
class Embed(Augment):
    """Look each code up in the codebook of the store."""

    stages: ClassVar[tuple[Stage, ...]] = ("ids",)
    gives: ClassVar[Stage | None] = "map"
    codebook: Tensor | None = field(default=None, init=False, repr=False, compare=False)  # (K, C)

    def bind(self, codebook: Tensor | None) -> Embed:
        """The same step with the codebook of the data."""
        if codebook is None:
            raise ConfigError("augmentation 'embed' needs a codebook", "train on a token store")
        bound = Embed()
        object.__setattr__(bound, "codebook", codebook)
        return bound

    def apply(self, batch: Batch, p: Any) -> Batch:
        """x: (B, H, W) codes to (B, C, H, W)."""
        if self.codebook is None:
            raise ConfigError("augmentation 'embed' was not given a codebook", "call bind(codebook) first")
        return batch.changed(x=F.embedding(batch.x.long(), self.codebook).permute(0, 3, 1, 2))
