"""Streams of binary decisions of a small network over decoded neighbours: codec `mix`. docs/format.md has the formula.

Weights are whole numbers kept as floats: sums stay below 2^24 and are exact in any order.

B records | T codes | K codes of the vocabulary | Q neighbours | H hidden units | D longest path
"""

from __future__ import annotations

import numpy as np

from tilework.core.compiled import jit, jit_any_order
from tilework.store.kernels.streams import FOUR, LOW, SIXTEEN, U32, first_state, refill

WHOLE, HALF = U32(1 << 16), U32(0xFFFF)
TOP = np.float32(127)


@jit
def hide(
    row: np.ndarray, t: int, columns: int, places: np.ndarray, u: np.ndarray, bias: np.ndarray, hidden: np.ndarray
) -> None:
    """Hidden units of a code's neighbours. row: (T,) codes of the record, those before t known."""
    y, x = t // columns, t % columns
    for j in range(len(hidden)):
        hidden[j] = bias[j]
    for q in range(len(places)):
        up, across = y + places[q, 0], x + places[q, 1]
        inside = up >= 0 and 0 <= across < columns
        part = u[q, row[up * columns + across] if inside else u.shape[1] - 1]
        for j in range(len(hidden)):
            hidden[j] += part[j]
    for j in range(len(hidden)):
        hidden[j] = min(max(hidden[j], -TOP), TOP)


@jit_any_order
def chance(hidden: np.ndarray, weights: np.ndarray, first: np.float32, shift: int, table: np.ndarray) -> np.uint32:
    """Slots of the answer 1 at a node of the tree, out of 2^16."""
    z = first
    for j in range(len(hidden)):
        z += hidden[j] * weights[j]
    return table[min(max((np.int64(z) >> shift) + len(table) // 2, 0), len(table) - 1)]


@jit
def same_before(row: np.ndarray, before: np.ndarray, t: int, columns: int) -> int:
    """Which of the left, upper, upper left and upper right codes are those of the record before, as bits."""
    x, up = t % columns, t >= columns
    found = 0
    if x > 0 and row[t - 1] == before[t - 1]:
        found |= 1
    if up and row[t - columns] == before[t - columns]:
        found |= 2
    if up and x > 0 and row[t - columns - 1] == before[t - columns - 1]:
        found |= 4
    if up and x < columns - 1 and row[t - columns + 1] == before[t - columns + 1]:
        found |= 8
    return found


@jit
def decode_mix(
    data: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
    chain: np.ndarray,
    tree: np.ndarray,
    places: np.ndarray,
    u: np.ndarray,
    bias: np.ndarray,
    v: np.ndarray,
    c: np.ndarray,
    shift: int,
    table: np.ndarray,
    same: np.ndarray,
    columns: int,
    out: np.ndarray,
) -> int:
    """out: (B, T). chain: (B,) 0 where a record stands alone, else it follows the row before."""
    count, steps = out.shape
    hidden = np.empty(len(bias), np.float32)
    for i in range(count):
        at = np.uintp(starts[i])
        end = at + np.uintp(sizes[i])
        x = first_state(data, at)
        at += FOUR
        row, follows = out[i], chain[i] > 0
        for t in range(steps):
            if follows:
                p, slot = same[same_before(row, out[i - 1], t, columns)], x & HALF
                if slot < p:
                    x, at = refill(data, p * (x >> SIXTEEN) + slot, at, end)
                    row[t] = out[i - 1, t]
                    continue
                x, at = refill(data, (WHOLE - p) * (x >> SIXTEEN) + slot - p, at, end)
            hide(row, t, columns, places, u, bias, hidden)
            node = 0 if len(tree) else -1
            while node >= 0:
                p, slot = chance(hidden, v[node], c[node], shift, table), x & HALF
                if slot < p:
                    x, at = refill(data, p * (x >> SIXTEEN) + slot, at, end)
                    node = tree[node, 1]
                else:
                    x, at = refill(data, (WHOLE - p) * (x >> SIXTEEN) + slot - p, at, end)
                    node = tree[node, 0]
            row[t] = ~node
        if x != LOW or at != end:
            return i
    return -1


@jit
def code_mix(
    ids: np.ndarray,
    chain: np.ndarray,
    nodes: np.ndarray,
    answers: np.ndarray,
    places: np.ndarray,
    u: np.ndarray,
    bias: np.ndarray,
    v: np.ndarray,
    c: np.ndarray,
    shift: int,
    table: np.ndarray,
    same: np.ndarray,
    columns: int,
    frequency: np.ndarray,
    start: np.ndarray,
) -> int:
    """Frequency and first slot of every decision, (B, steps), what is left of a row saying nothing.

    nodes, answers: (K, D) the way to each code, -1 behind its end. Returns the largest number of decisions.
    """
    hidden = np.empty(len(bias), np.float32)
    most = 0
    for i in range(len(ids)):
        at, row, follows = 0, ids[i], chain[i] > 0
        for t in range(ids.shape[1]):
            if follows:
                p = same[same_before(row, ids[i - 1], t, columns)]
                alike = row[t] == ids[i - 1, t]
                frequency[i, at], start[i, at] = (p, U32(0)) if alike else (WHOLE - p, p)
                at += 1
                if alike:
                    continue
            hide(row, t, columns, places, u, bias, hidden)
            for k in range(nodes.shape[1]):
                node = nodes[row[t], k]
                if node < 0:
                    break
                p = chance(hidden, v[node], c[node], shift, table)
                frequency[i, at], start[i, at] = (p, U32(0)) if answers[row[t], k] else (WHOLE - p, p)
                at += 1
        most = max(most, at)
        for k in range(at, frequency.shape[1]):
            frequency[i, k], start[i, k] = WHOLE, U32(0)
    return most
