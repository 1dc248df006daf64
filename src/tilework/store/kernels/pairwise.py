"""Streams log-linear in four neighbours: codec `pairwise`. docs/format.md has the formula; all whole numbers.

B streams | T steps | K codes | R rank | Q = 4 neighbours
"""

from __future__ import annotations

import numpy as np

from tilework.core.compiled import jit
from tilework.store.kernels.streams import FOUR, LOW, U32, first_state, refill

PRECISION = 16
TOGETHER = 16  # codes


@jit
def masses_pairwise(
    u: np.ndarray, v: np.ndarray, shift: int, table: np.ndarray, near: np.ndarray, hidden: np.ndarray,
    score: np.ndarray, mass: np.ndarray,
) -> int:  # fmt: skip
    """Unscaled mass of every code; returns the factor. u: (Q, K + 1, R + 1) float32; v: (R + 1, K); near: (Q,)."""
    codes, last, ranks = len(mass), np.int32(len(table) - 1), len(hidden)
    for r in range(ranks):
        hidden[r] = u[0, near[0], r] + u[1, near[1], r] + u[2, near[2], r] + u[3, near[3], r]
    for s in range(codes):
        score[s] = 0
    for r in range(0, ranks - 3, 4):  # exact in any order: whole numbers below 2^24
        a, b, c, d = hidden[r], hidden[r + 1], hidden[r + 2], hidden[r + 3]
        for s in range(codes):
            score[s] += a * v[r, s] + b * v[r + 1, s] + c * v[r + 2, s] + d * v[r + 3, s]
    for r in range(ranks - ranks % 4, ranks):
        for s in range(codes):
            score[s] += hidden[r] * v[r, s]
    best = np.int32(score[0])
    for s in range(codes):
        best = max(best, np.int32(score[s]))  # of whole numbers, which take one instruction for several
    total = U32(0)
    for s in range(codes):
        mass[s] = table[U32(min(best - np.int32(score[s]) >> shift, last))]
        total += mass[s]
    return U32(((1 << PRECISION) - codes) << 14) // total


@jit
def slots_of(mass: np.uint32, factor: np.uint32) -> np.uint32:
    """Slots of a code."""
    return U32(1) + (mass * factor >> U32(14))


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
    mass = np.empty(outside, np.uint32)
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
            factor = masses_pairwise(u, v, shift, table, near, hidden, score, mass)
            slot, first, code = x & U32(0xFFFF), U32(0), 0
            while code + TOGETHER < outside:  # codes are passed over together, then one by one
                some = U32(0)
                for s in range(code, code + TOGETHER):
                    some += slots_of(mass[s], factor)
                if first + some > slot:
                    break
                first += some
                code += TOGETHER
            slots = slots_of(mass[code], factor)
            while code < outside - 1 and first + slots <= slot:
                first += slots
                code += 1
                slots = slots_of(mass[code], factor)
            if code == outside - 1:
                slots = U32(1 << PRECISION) - first
            out[i, t] = code
            x, at = refill(data, slots * (x >> U32(PRECISION)) + slot - first, at, end)
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
    mass = np.empty(outside, np.uint32)
    for i in range(len(ids)):
        for t in range(ids.shape[1]):
            column, up = t % columns, t >= columns
            near[0] = ids[i, t - 1] if column else outside
            near[1] = ids[i, t - columns] if up else outside
            near[2] = ids[i, t - columns - 1] if up and column else outside
            near[3] = ids[i, t - columns + 1] if up and column < columns - 1 else outside
            factor = masses_pairwise(u, v, shift, table, near, hidden, score, mass)
            code, first = ids[i, t], U32(0)
            for s in range(code):
                first += slots_of(mass[s], factor)
            start[i, t] = first
            frequency[i, t] = slots_of(mass[code], factor) if code < outside - 1 else U32(1 << PRECISION) - first
    return -1
