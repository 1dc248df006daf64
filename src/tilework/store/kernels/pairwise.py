"""Streams log-linear in four neighbours: codec `pairwise`. docs/format.md has the formula; all whole numbers.

B streams | T steps | K codes | R rank | Q = 4 neighbours
"""

from __future__ import annotations

import numpy as np

from tilework.core.compiled import jit
from tilework.store.kernels.streams import FOUR, LOW, U32, first_state, refill

PRECISION = 16


@jit
def slots_pairwise(
    u: np.ndarray, v: np.ndarray, shift: int, table: np.ndarray, near: np.ndarray, hidden: np.ndarray,
    score: np.ndarray, ends: np.ndarray,
) -> None:  # fmt: skip
    """One past the last slot of every code. u: (Q, K + 1, R + 1) float32; v: (R + 1, K); near: (Q,); ends: (K,)."""
    codes, last = len(ends), len(table) - 1
    for r in range(len(hidden)):
        hidden[r] = u[0, near[0], r] + u[1, near[1], r] + u[2, near[2], r] + u[3, near[3], r]
    for s in range(codes):
        score[s] = 0
    for r in range(len(hidden)):
        h = hidden[r]
        for s in range(codes):
            score[s] += h * v[r, s]  # exact: whole numbers below 2^24
    best = score[0]
    for s in range(codes):
        best = max(best, score[s])
    total = U32(0)
    for s in range(codes):
        mass = table[min(np.int32(best - score[s]) >> shift, last)]
        ends[s] = mass
        total += mass
    factor = U32(((1 << PRECISION) - codes) << 14) // total
    end = U32(0)
    for s in range(codes):
        end += U32(1) + (ends[s] * factor >> U32(14))
        ends[s] = end
    ends[codes - 1] = 1 << PRECISION


@jit
def decode_pairwise(
    data: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
    u: np.ndarray,
    v: np.ndarray,
    shift: int,
    table: np.ndarray,
    columns: int,
    out: np.ndarray,
) -> int:
    """out: (B, T)."""
    count, steps = out.shape
    outside = u.shape[1] - 1
    near = np.empty(4, np.int64)
    hidden, score = np.empty(u.shape[2], np.float32), np.empty(outside, np.float32)
    ends = np.empty(outside, np.uint32)
    for i in range(count):
        at = np.uintp(starts[i])
        end = at + np.uintp(sizes[i])
        x = first_state(data, at)
        at += FOUR
        for t in range(steps):
            column, up = t % columns, t >= columns
            near[0] = out[i, t - 1] if column else outside
            near[1] = out[i, t - columns] if up else outside
            near[2] = out[i, t - columns - 1] if up and column else outside
            near[3] = out[i, t - columns + 1] if up and column < columns - 1 else outside
            slots_pairwise(u, v, shift, table, near, hidden, score, ends)
            slot = x & U32(0xFFFF)
            low, high = 0, outside - 1  # the first code whose slots end behind this one
            while low < high:
                middle = (low + high) // 2
                if ends[middle] > slot:
                    high = middle
                else:
                    low = middle + 1
            out[i, t] = low
            first = ends[low - 1] if low else U32(0)
            x, at = refill(data, (ends[low] - first) * (x >> U32(PRECISION)) + slot - first, at, end)
        if x != LOW or at != end:
            return i
    return -1


@jit
def code_pairwise(
    ids: np.ndarray, u: np.ndarray, v: np.ndarray, shift: int, table: np.ndarray, columns: int, frequency: np.ndarray,
    start: np.ndarray,
) -> int:  # fmt: skip
    """Frequency and first slot of every code. ids: (B, T); frequency, start: (B, T)."""
    outside = u.shape[1] - 1
    near = np.empty(4, np.int64)
    hidden, score = np.empty(u.shape[2], np.float32), np.empty(outside, np.float32)
    ends = np.empty(outside, np.uint32)
    for i in range(len(ids)):
        for t in range(ids.shape[1]):
            column, up = t % columns, t >= columns
            near[0] = ids[i, t - 1] if column else outside
            near[1] = ids[i, t - columns] if up else outside
            near[2] = ids[i, t - columns - 1] if up and column else outside
            near[3] = ids[i, t - columns + 1] if up and column < columns - 1 else outside
            slots_pairwise(u, v, shift, table, near, hidden, score, ends)
            code = ids[i, t]
            start[i, t] = ends[code - 1] if code else 0
            frequency[i, t] = ends[code] - start[i, t]
    return -1
