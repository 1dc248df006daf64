"""The order of samples is a function of (seed, epoch): nothing to save, nothing to replay."""

from __future__ import annotations

import numpy as np

from tilework.core.rng import permutation


def epoch_order(seed: int, epoch: int, count: int) -> np.ndarray:
    """A permutation of `count` samples: every sample exactly once. Returns (count,) int64."""
    return permutation(seed, epoch, count, "order")


def batch_of(order: np.ndarray, step: int, batch: int, rank: int = 0, world: int = 1, repeats: int = 1) -> np.ndarray:
    """The part of one process in global batch `step` of an epoch: an even, contiguous share.

    repeats: copies of each sample in the batch, each augmented by itself (Hoffer et al., 2020), as far apart as they
    can be; copy c of sample i is numbered c * len(order) + i, which keys its draws.
    """
    different = -(-batch // repeats)
    copy, position = np.divmod(np.arange(batch), different)
    chosen = order[step * different + position] + copy * len(order)
    share = batch // world
    return chosen[rank * share : (rank + 1) * share]
