"""Some samples of a data set, drawn at random once and for all."""

from __future__ import annotations

import numpy as np

from tilework.core.batch import Batch
from tilework.core.errors import ConfigError
from tilework.core.rng import words
from tilework.data.source import Around, Source


def part_of(total: int, count: int, seed: int = 0) -> np.ndarray:
    """Numbers of `count` samples out of all, in order, (count,); more of them hold every fewer."""
    return np.sort(_first(_shuffled(total, seed), count, "samples"))


def balanced_part(labels: np.ndarray, classes: int, count: int, seed: int = 0) -> np.ndarray:
    """The same with as many samples of each class, up to one. labels: (N,) class numbers; returns (count,)."""
    if count < classes:
        what = f"{count} samples were asked for, fewer than the {classes} classes of the data"
        raise ConfigError(what, "raise 'samples', or set draw.balanced=false")
    order, parts = _shuffled(len(labels), seed), []
    for number in range(classes):
        own, wanted = order[labels[order] == number], count // classes + (number < count % classes)
        if len(own) < wanted:
            what = f"class number {number} has {len(own)} samples, and {wanted} of each class were asked for"
            raise ConfigError(what, "lower 'samples', or set draw.balanced=false")
        parts.append(own[:wanted])
    return np.sort(np.concatenate(parts))


def held_part(total: int, taken: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """`count` samples that are not among those taken, in order, (count,)."""
    order = _shuffled(total, seed)
    return np.sort(_first(order[~np.isin(order, taken)], count, "draw.held"))


def _shuffled(total: int, seed: int) -> np.ndarray:
    drawn = words(seed, 0, np.arange(total), "part", 2)  # (total, 2)
    return np.lexsort((drawn[:, 1], drawn[:, 0]))


def _first(order: np.ndarray, count: int, setting: str) -> np.ndarray:
    if not 0 < count <= len(order):
        raise ConfigError(f"{count} samples were asked for, the data have {len(order)}", f"lower '{setting}'")
    return order[:count]


class Chosen(Around):
    """Some samples of a source, in an order of their own. index: (N,) int64."""

    def __init__(self, source: Source, index: np.ndarray) -> None:
        self.source, self.index = source, index

    @property
    def stream(self) -> None:
        """None: samples that lie anywhere are read in any order."""
        return None

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
