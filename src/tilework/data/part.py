"""Some samples of a data set, drawn at random once and for all."""

from __future__ import annotations

import numpy as np

from tilework.core.batch import Batch
from tilework.core.errors import ConfigError
from tilework.core.rng import words
from tilework.data.source import Around, Source


def part_of(total: int, count: int) -> np.ndarray:
    """Numbers of `count` samples out of all, in order, (count,); more of them hold every fewer."""
    if not 0 < count <= total:
        raise ConfigError(f"{count} samples were asked for, the data have {total}", "lower 'samples'")
    drawn = words(0, 0, np.arange(total), "part", 2)  # (total, 2)
    return np.sort(np.lexsort((drawn[:, 1], drawn[:, 0]))[:count])


class Chosen(Around):
    """Some samples of a source, in an order of their own. index: (N,) int64."""

    def __init__(self, source: Source, index: np.ndarray) -> None:
        self.source, self.index = source, index

    @property
    def labels(self) -> np.ndarray:
        """Class number of each sample, (N,)."""
        return self.source.labels[self.index]

    def __len__(self) -> int:
        return len(self.index)

    def batch(self, index: np.ndarray) -> Batch:
        """Samples by their number in the part. index: (B,) int64."""
        return self.source.batch(self.index[index])


class Part(Chosen):
    """`count` samples of a source; a larger part holds every smaller one."""

    def __init__(self, source: Source, count: int) -> None:
        super().__init__(source, part_of(len(source), count))
