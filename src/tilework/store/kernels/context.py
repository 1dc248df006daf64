"""Streams whose table depends on the clusters of the left and the upper code: codec `rans-context`.

B streams | T steps | K symbols | X tables | P precision
"""

from __future__ import annotations

import numpy as np

from tilework.core.compiled import jit
from tilework.store.kernels.streams import FOUR, LOW, U32, first_state, refill

COARSE, AHEAD = U32(4), 4  # as in store/lanes.py; not imported: compiled code is kept by the files of this folder


@jit
def take(
    data: np.ndarray, x: np.uint32, at: np.uintp, end: np.uintp, table: int, coarse: np.ndarray, starts: np.ndarray,
    shift: np.uint32,
) -> tuple[np.uint32, np.uintp, int]:  # fmt: skip
    """One symbol by a table. coarse: (X, 2^P / 2^COARSE) symbol of a slot; starts: (X, K + 1 + AHEAD) first slots.

    Both fit the cache where a table of all slots does not. From the symbol found it is a few steps to the right one,
    counted without a branch. Entries of `starts` behind the last symbol are 2^P.
    """
    slot = x & ((U32(1) << shift) - U32(1))
    row, symbol = starts[table], np.int64(coarse[table, slot >> COARSE])
    while True:
        passed = 0
        for k in range(AHEAD):
            passed += row[symbol + 1 + k] <= slot
        symbol += passed
        if passed < AHEAD:
            break
    first, last = U32(row[symbol]), U32(row[symbol + 1])
    x, at = refill(data, (last - first) * (x >> shift) + slot - first, at, end)
    return x, at, symbol


@jit
def decode_context(
    data: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
    coarse: np.ndarray,
    firsts: np.ndarray,
    left: np.ndarray,
    above: np.ndarray,
    columns: int,
    precision: int,
    out: np.ndarray,
) -> int:
    """out: (B, T). left, above: (K + 1,) parts of a table's number, those of what lies outside last."""
    count, steps = out.shape
    outside, shift = len(left) - 1, U32(precision)
    for i in range(0, count, 4):
        j, k, m = min(i + 1, count - 1), min(i + 2, count - 1), min(i + 3, count - 1)  # the last one fills up
        a0, a1, a2, a3 = np.uintp(starts[i]), np.uintp(starts[j]), np.uintp(starts[k]), np.uintp(starts[m])
        e0, e1 = a0 + np.uintp(sizes[i]), a1 + np.uintp(sizes[j])
        e2, e3 = a2 + np.uintp(sizes[k]), a3 + np.uintp(sizes[m])
        x0, x1, x2, x3 = first_state(data, a0), first_state(data, a1), first_state(data, a2), first_state(data, a3)
        a0, a1, a2, a3 = a0 + FOUR, a1 + FOUR, a2 + FOUR, a3 + FOUR
        for t in range(steps):
            if t % columns == 0:
                c0 = c1 = c2 = c3 = left[outside]
            else:
                c0, c1, c2, c3 = left[out[i, t - 1]], left[out[j, t - 1]], left[out[k, t - 1]], left[out[m, t - 1]]
            if t < columns:
                b0 = b1 = b2 = b3 = above[outside]
            else:
                up = t - columns
                b0, b1, b2, b3 = above[out[i, up]], above[out[j, up]], above[out[k, up]], above[out[m, up]]
            x0, a0, out[i, t] = take(data, x0, a0, e0, c0 + b0, coarse, firsts, shift)
            x1, a1, out[j, t] = take(data, x1, a1, e1, c1 + b1, coarse, firsts, shift)
            x2, a2, out[k, t] = take(data, x2, a2, e2, c2 + b2, coarse, firsts, shift)
            x3, a3, out[m, t] = take(data, x3, a3, e3, c3 + b3, coarse, firsts, shift)
        if x0 != LOW or x1 != LOW or x2 != LOW or x3 != LOW or a0 != e0 or a1 != e1 or a2 != e2 or a3 != e3:
            return i
    return -1
