"""Codes to code vectors: the frozen codebook as a step of the input (SeiT).

B batch | H, W code grid | K codes | C code dim
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.augment.augment import Augment
from tilework.core.batch import Batch, Stage
from tilework.core.errors import ConfigError


def look_up(ids: Tensor, codebook: Tensor) -> Tensor:
    """Code vectors; of several codes at a place each gives its own channel. codebook: (K, C).

    ids: (B, H, W) or (B, C, H, W); returns (B, C, H, W), channels lying together in memory.
    """
    if ids.ndim == 3:
        return F.embedding(ids.long(), codebook).permute(0, 3, 1, 2)
    ids, channels = ids.permute(0, 2, 3, 1).long(), codebook.shape[1]
    place = ids * channels + torch.arange(channels, device=ids.device)  # in the table as one row
    return codebook.flatten().index_select(0, place.reshape(-1)).view(ids.shape).permute(0, 3, 1, 2)


@Augment.choices.add("embed")
@dataclass(frozen=True)
class Embed(Augment):
    """Look each code up in the codebook of the store.

    standardise: scale every channel to mean 0 and deviation 1 over the codes, as pixels are: unit-length code vectors
    are small, and a stem learns slowly from small numbers.
    """

    stages: ClassVar[tuple[Stage, ...]] = ("ids", "stacks")
    gives: ClassVar[Stage | None] = "map"
    standardise: bool = False
    codebook: Tensor | None = field(default=None, init=False, repr=False, compare=False)  # (K, C)

    def needs_places(self) -> bool:
        """Codes are looked up one by one."""
        return False

    def bind(self, codebook: Tensor | None, table: Tensor | None = None) -> Embed:
        """The same step with the codebook of the data, or the table as it is."""
        if codebook is None:
            raise ConfigError("augmentation 'embed' needs a codebook", "train on a token store")
        if not codebook.shape[1]:
            raise ConfigError("the store has no code vectors", "convert it again with --codebook")
        if table is not None:
            codebook = table
        elif self.standardise:
            codebook = (codebook - codebook.mean(0)) / codebook.std(0, correction=0).clamp(min=1e-6)
        bound = Embed(self.standardise)
        object.__setattr__(bound, "codebook", codebook)
        return bound

    def apply(self, batch: Batch, p: Any) -> Batch:
        """x: (B, H, W) or (B, C, H, W) codes to (B, C, H, W)."""
        if self.codebook is None:
            raise ConfigError("augmentation 'embed' was not given a codebook", "call bind(codebook) first")
        return batch.changed(x=look_up(batch.x, self.codebook))
