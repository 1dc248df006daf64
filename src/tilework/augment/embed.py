"""Codes to code vectors: the frozen codebook as a step of the input (SeiT).

B batch | H, W code grid | K codes | C code dim
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.augment.augment import CPU, Augment, Step, need_vectors
from tilework.core.batch import Batch, Stage
from tilework.core.codebook import Codebook
from tilework.core.rng import Draws


def look_up(ids: Tensor, table: Tensor) -> Tensor:
    """Code vectors; of G codes at a position each gives C / G channels, the first code the first ones. table: (K, C).

    ids: (B, H, W) or (B, G, H, W); returns (B, C, H, W), channels lying together in memory.
    """
    if ids.ndim == 3:
        return F.embedding(ids.long(), table).permute(0, 3, 1, 2)
    ids = ids.permute(0, 2, 3, 1).long()  # (B, H, W, G)
    entry = ids * ids.shape[3] + torch.arange(ids.shape[3], device=ids.device)  # rows of the table, cut into G each
    found = table.view(len(table) * ids.shape[3], -1).index_select(0, entry.reshape(-1))  # (B H W G, C / G)
    return found.view(*ids.shape[:3], table.shape[1]).permute(0, 3, 1, 2)


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

    def needs_grid(self) -> bool:
        """Codes are looked up one by one."""
        return False

    def build(self, codebook: Codebook | None = None, device: torch.device = CPU) -> LookUp:
        """With the vectors of a codebook: the learnt ones where there are any."""
        known = need_vectors(codebook, self)
        return LookUp(model_table(known, self.standardise, device), known.deviation(self.standardise))


@dataclass(frozen=True, eq=False)
class LookUp(Step[None]):
    """Codes to their vectors."""

    table: Tensor  # (K, C)
    deviation: float  # of it

    def sample(self, draws: Draws, batch: Batch) -> None:
        """Nothing is drawn."""

    def apply(self, batch: Batch, p: None) -> Batch:
        """x: (B, H, W) or (B, C, H, W) codes to (B, C, H, W)."""
        deviation = deviation_of(batch.x, self.deviation, self.table.shape[1])
        return batch.changed(x=look_up(batch.x, self.table), deviation=deviation)


def model_table(codebook: Codebook, standardise: bool, device: torch.device) -> Tensor:
    """The vectors that a model sees, (K, C), on a device."""
    return torch.from_numpy(codebook.table(standardise)).to(device)


def deviation_of(ids: Tensor, table: float, channels: int) -> float:
    """Deviation of the vectors of codes: the table's, or 1 where each of several codes at a position has one channel.

    Those are numbers in units of their own deviation, and their table lists all that are possible, however rare.
    ids: (B, H, W) or (B, G, H, W); channels: C.
    """
    return table if ids.ndim == 3 or ids.shape[1] < channels else 1.0
