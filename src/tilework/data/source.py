"""What training and evaluation read from.

B batch | H, W grid | K codes | C code dim
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from tilework.core.batch import Batch, Shape, Stage
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError

KEEP_BYTES = 1 << 30  # decoded data sets up to this size stay in memory


class Source(Protocol):
    """A data set that gives any set of its samples as a batch on the host."""

    @property
    def stage(self) -> Stage:
        """What its samples are: "ids", "stacks" of them or "pixels"."""

    @property
    def grid(self) -> tuple[int, int]:
        """Of codes or pixels."""

    @property
    def together(self) -> int:
        """Samples worth reading in one call."""

    @property
    def codebook(self) -> Codebook | None:
        """What its codes stand for; None for pixels."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of their numbers."""

    @property
    def labels(self) -> np.ndarray:
        """Class number of each sample, (N,)."""

    def __len__(self) -> int: ...

    def batch(self, index: np.ndarray) -> Batch:
        """Samples by their global index. index: (B,) int64."""


OrderName = Literal["auto", "shuffle", "stream"]


@dataclass(frozen=True)
class Stream:
    """Samples that lie in shards, which are best read one after another."""

    sizes: np.ndarray  # (S,) samples of each shard, in the order of their numbers
    preferred: bool  # rather than in any order: the shards lie behind a URL, or are many; and their order is random
    shuffled: bool  # whether neighbours are as different as any two samples
    keep_open: Callable[[int], None]  # so many shards at a time


def stream_of(source: Source, order: OrderName = "stream") -> Stream | None:
    """How to read samples shard after shard; None where they are read in any order."""
    found: Stream | None = getattr(source, "stream", None)
    if order == "stream" and found is None:
        raise ConfigError("these samples do not lie in shards", "set fit.order=shuffle")
    return found if found is not None and (order == "stream" or (order == "auto" and found.preferred)) else None


def shape_of(source: Source) -> Shape:
    """What the samples of a data set look like."""
    return Shape(source.stage, 3 if source.codebook is None else source.codebook.code_dim, source.grid)


class Around:
    """A data set made of another one, with its kind, grid, codes and classes."""

    source: Source

    @property
    def stream(self) -> Stream | None:
        """How to read it shard after shard, where it can be."""
        return getattr(self.source, "stream", None)

    @property
    def stage(self) -> Stage:
        """What its samples are."""
        return self.source.stage

    @property
    def grid(self) -> tuple[int, int]:
        """Of codes or pixels."""
        return self.source.grid

    @property
    def together(self) -> int:
        """Samples worth reading in one call."""
        return self.source.together

    @property
    def codebook(self) -> Codebook | None:
        """What its codes stand for; None for pixels."""
        return self.source.codebook

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of their numbers, whether they occur or not."""
        return self.source.classes

    @property
    def labels(self) -> np.ndarray:
        """Class number of each sample, (N,)."""
        return self.source.labels


def innermost(source: Source) -> Source:
    """What other data sets are made around."""
    while isinstance(source, Around):
        source = source.source
    return source


class Redrawn(Around):
    """A data set whose samples differ from epoch to epoch, by draws that the host must know."""

    def draw(self, seed: int, epoch: int, number: np.ndarray) -> Batch:
        """Samples of an epoch. number: (B,) int64, the sample's index plus a multiple of their count for copies."""
        raise NotImplementedError
