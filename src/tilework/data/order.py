"""The order of samples is a function of (seed, epoch): nothing to save, nothing to replay.

Either a permutation of all samples, or a stream: shards are dealt to lanes, each lane is read shard after shard, and
every batch takes the same share of each lane. A process takes lanes that follow each other, so it reads its own shards
only, each once, and none for longer than it takes to use it up.

N samples | S shards | L lanes | B batch
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Protocol

import numpy as np

from tilework.core.rng import permutation, words

Piece = tuple[int, int]  # the first of some samples that follow each other, and their number


class Order(Protocol):
    """The samples of an epoch, by their places in it."""

    def __len__(self) -> int: ...

    def __getitem__(self, places: np.ndarray, /) -> np.ndarray:
        """Samples, (B,) int64. places: (B,)."""


def epoch_order(seed: int, epoch: int, count: int) -> np.ndarray:
    """A permutation of `count` samples: every sample exactly once. Returns (count,) int64."""
    return permutation(seed, epoch, count, "order")


class StreamOrder:
    """An epoch read shard after shard, in lanes. sizes: (S,) samples of each shard; batch: different samples of a step.

    What a lane needs beyond whole shards, it takes from shards that are cut: all lanes come to these at the same time,
    when they end. Memory does not grow with the data: a lane holds the order of one shard.
    """

    def __init__(self, seed: int, epoch: int, sizes: np.ndarray, batch: int, lanes: int) -> None:
        self.seed, self.epoch, self.batch = seed, epoch, batch
        self._count = int(sizes.sum())
        self._edges = np.arange(lanes + 1) * batch // lanes  # places of each lane in a batch, (L + 1,)
        needed = np.diff(self._edges) * (self._count // batch)
        drawn = int(words(seed, epoch, np.zeros(1, np.int64), "rest of the shards", 1)[0, 0])
        self.lanes = _deal(permutation(seed, epoch, len(sizes), "shards"), sizes, needed, drawn)
        self._ends = [list(accumulate(count for _, count in lane)) for lane in self.lanes]
        self._open: dict[int, tuple[int, np.ndarray]] = {}  # by lane: which of its pieces, and the order of that

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, places: np.ndarray, /) -> np.ndarray:
        """Samples, (B,) int64. places: (B,), ascending."""
        step, at = np.divmod(np.asarray(places, np.int64), self.batch)
        lane = np.searchsorted(self._edges, at, side="right") - 1
        within = step * np.diff(self._edges)[lane] + at - self._edges[lane]  # place in its lane
        out = np.empty_like(within)
        for number in np.unique(lane).tolist():
            rows = np.flatnonzero(lane == number)
            out[rows] = self._take(number, within[rows])
        return out

    def _take(self, lane: int, within: np.ndarray) -> np.ndarray:
        ends, out = self._ends[lane], np.empty_like(within)
        piece = np.searchsorted(ends, within, side="right")
        for number in np.unique(piece).tolist():
            first, count = self.lanes[lane][number]
            if self._open.get(lane, (-1,))[0] != number:
                self._open[lane] = number, first + _shuffled(self.seed, self.epoch, first, count)
            rows = piece == number
            out[rows] = self._open[lane][1][within[rows] - (ends[number] - count)]
        return out


def _deal(turn: np.ndarray, sizes: np.ndarray, needed: np.ndarray, drawn: int) -> list[list[Piece]]:
    """Pieces of each lane. turn: (S,) the order of the shards; sizes: (S,) by number; needed: (L,) samples.

    drawn: which samples are left out where more are there than needed.
    """
    firsts = np.cumsum(sizes) - sizes
    found, times = np.unique(sizes, return_counts=True)
    usual = int(found[(found * times).argmax()])  # most shards have one size
    whole = [int(number) for number in turn if sizes[number] == usual]
    lanes: list[list[Piece]] = []
    dealt: set[int] = set()
    for count in needed.tolist():
        some = max(0, count - 1) // usual  # all take from the rest, or shards of other sizes would never be read
        taken, whole = whole[:some], whole[some:]
        lanes.append([(int(firsts[number]), usual) for number in taken])
        dealt.update(taken)
    cut = [int(number) for number in turn if number not in dealt]
    line = [0, *accumulate(int(sizes[number]) for number in cut)]
    at = drawn % (line[-1] + len(dealt) * usual - int(needed.sum()) + 1)
    for lane, count in zip(lanes, needed.tolist(), strict=True):
        left = count - len(lane) * usual
        while left:
            place = bisect_right(line, at) - 1
            some = min(left, line[place + 1] - at)
            lane.append((int(firsts[cut[place]]) + at - line[place], some))
            at, left = at + some, left - some
    return lanes


def _shuffled(seed: int, epoch: int, first: int, count: int) -> np.ndarray:
    """A random order of some samples that follow each other, (count,)."""
    high, low = words(seed, epoch, np.arange(first, first + count), "samples of a shard", 2).T
    return np.argsort((high << 31) ^ low, kind="stable")


def batch_of(order: Order, step: int, batch: int, rank: int = 0, world: int = 1, repeats: int = 1) -> np.ndarray:
    """The part of one process in global batch `step` of an epoch: a contiguous share, even up to one sample.

    repeats: copies of each sample in the batch, each augmented by itself (Hoffer et al., 2020), as far apart as they
    can be; copy c of sample i is numbered c * len(order) + i, which keys its draws.
    """
    different = -(-batch // repeats)
    mine = np.arange(rank * batch // world, (rank + 1) * batch // world)
    copy, position = np.divmod(mine, different)
    return order[step * different + position] + copy * len(order)
