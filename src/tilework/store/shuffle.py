"""The order of images in a store: as in the parts of its spool, or shuffled, as a function of a seed.

Parts are shuffled whole, then images among GROUP of them that follow each other: a range of a shuffled store is read
from at most two groups of parts, and the memory of the order does not grow with the store.

P parts | B images
"""

from __future__ import annotations

import numpy as np

from tilework.core.rng import permutation

GROUP = 1024  # parts


class ImageOrder:
    """Where each image of a store comes from. counts: (P,) images of each part; seed: None for the order of parts."""

    def __init__(self, counts: np.ndarray, seed: int | None) -> None:
        self.seed = seed
        self._turn = np.arange(len(counts)) if seed is None else permutation(seed, 0, len(counts), "parts of a store")
        self._firsts = np.concatenate([[0], np.cumsum(counts[self._turn])])  # of the parts in their turn, and the end
        self._known: tuple[int, np.ndarray] = (-1, np.empty(0, np.int64))

    def __len__(self) -> int:
        return int(self._firsts[-1])

    @property
    def shuffled(self) -> bool:
        """Whether neighbours in the store need not be neighbours in the source."""
        return self.seed is not None

    def find(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The part of each image and its number in it, (B,) both. index: (B,) ascending numbers in the store."""
        line = index if self.seed is None else self._shuffled(index)
        turn = np.searchsorted(self._firsts, line, side="right") - 1
        return self._turn[turn], line - self._firsts[turn]

    def _shuffled(self, index: np.ndarray) -> np.ndarray:
        """Images by their place among the parts in their turn."""
        edges = np.append(self._firsts[:-1:GROUP], len(self))
        group = np.searchsorted(edges, index, side="right") - 1
        line = np.empty_like(index)
        for number in np.unique(group).tolist():
            rows, first = group == number, int(edges[number])
            if self._known[0] != number:
                count = int(edges[number + 1]) - first
                self._known = number, permutation(self.seed or 0, number, count, "images of a store")
            line[rows] = first + self._known[1][index[rows] - first]
        return line
