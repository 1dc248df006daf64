"""What training and evaluation read from.

B batch | H, W grid | K codes | C code dim
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from tilework.core.batch import Batch, Shape, Stage
from tilework.core.codebook import Codebook


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


def shape_of(source: Source) -> Shape:
    """What the samples of a data set look like."""
    return Shape(source.stage, 3 if source.codebook is None else source.codebook.code_dim, source.grid)


class Around:
    """A data set made of another one, with its kind, grid, codes and classes."""

    source: Source

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
