"""Streams of binary decisions of a small network over decoded neighbours: codec `mix`. docs/format.md has the formula.

Weights of nodes are whole numbers kept as floats: sums stay below 2^24 and are exact in any order.

B records | T codes | K codes of the vocabulary | Q neighbours | H hidden units | D longest path
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tilework.core.compiled import jit, jit_any_order
from tilework.store.kernels.streams import FOUR, LOW, SIXTEEN, U32, first_state, refill

WHOLE, HALF = U32(1 << 16), U32(0xFFFF)
TOP = np.int32(127)
EIGHT = 8  # where the numbers of groups begin


@intrinsic
def eight_sums(typing_context: Any, hidden: Any, weights: Any, first: Any, out: Any) -> Any:
    """out = first + hidden @ weights by vectors of eight: (H,), (H, 8), (8,), all float32; H a multiple of 4.

    Left to itself, the compiler adds up one node after another, which takes three times as long.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = zip(signature.args, arguments, strict=True)
        arrays = [context.make_array(kind)(context, builder, value) for kind, value in kinds]
        h, w, c, z = (array.data for array in arrays)
        count = builder.extract_value(arrays[0].shape, 0)
        eight, index = ir.VectorType(ir.FloatType(), 8), ir.IntType(32)

        def number(value: int) -> Any:
            return ir.Constant(count.type, value)

        def load(pointer: Any) -> Any:
            return builder.load(builder.bitcast(pointer, eight.as_pointer()), align=4)

        zero, undefined = ir.Constant(eight, [0.0] * 8), ir.Constant(eight, ir.Undefined)
        spread = ir.Constant(ir.VectorType(index, 8), [0] * 8)
        sums = [cgutils.alloca_once_value(builder, load(c) if k == 0 else zero) for k in range(4)]
        with cgutils.for_range(builder, builder.udiv(count, number(4)), intp=count.type) as loop:
            for k, total in enumerate(sums):  # four sums: none waits for its own last step
                j = builder.add(builder.mul(loop.index, number(4)), number(k))
                unit = builder.insert_element(undefined, builder.load(builder.gep(h, [j])), ir.Constant(index, 0))
                row = load(builder.gep(w, [builder.mul(j, number(8))]))
                product = builder.fmul(builder.shuffle_vector(unit, undefined, spread), row, flags=("contract",))
                builder.store(builder.fadd(builder.load(total), product, flags=("contract",)), total)
        a, b, c, d = (builder.load(total) for total in sums)
        whole = builder.fadd(builder.fadd(a, b), builder.fadd(c, d))
        builder.store(whole, builder.bitcast(z, eight.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(hidden, weights, first, out), generate


@jit
def hide(
    row: np.ndarray, t: int, columns: int, places: np.ndarray, u: np.ndarray, bias: np.ndarray, sums: np.ndarray,
    hidden: np.ndarray,
) -> None:  # fmt: skip
    """Hidden units of a code's neighbours. row: (T,) codes of the record, those before t known; sums: (H,) int32.

    hidden: (H,) or longer, what is beyond it stays.
    """
    y, x = t // columns, t % columns
    for j in range(len(bias)):
        sums[j] = bias[j]
    for q in range(len(places)):
        up, across = y + places[q, 0], x + places[q, 1]
        inside = up >= 0 and 0 <= across < columns
        part = u[q, row[up * columns + across] if inside else u.shape[1] - 1]
        for j in range(len(bias)):
            sums[j] += part[j]
    for j in range(len(bias)):
        hidden[j] = min(max(sums[j], -TOP), TOP)


@jit
def slots(score: np.float32, shift: int, table: np.ndarray) -> np.uint32:
    """Slots of the answer 1 by the score of a node, out of 2^16."""
    return table[min(max((np.int32(score) >> shift) + len(table) // 2, 0), len(table) - 1)]


@jit_any_order
def chance(hidden: np.ndarray, weights: np.ndarray, first: np.float32, shift: int, table: np.ndarray) -> np.uint32:
    """Slots of the answer 1 at a node of the tree, out of 2^16."""
    z = first
    for j in range(len(hidden)):
        z += hidden[j] * weights[j]
    return slots(z, shift, table)


@jit
def answer(
    data: np.ndarray, x: np.uint32, at: np.uintp, end: np.uintp, p: np.uint32
) -> tuple[int, np.uint32, np.uintp]:
    """One decision: 1 if it has the first p slots. Without a branch: what cannot be foreseen would cost most."""
    slot = x & HALF
    yes = slot < p
    frequency, first = (p, U32(0)) if yes else (WHOLE - p, p)
    x, at = refill(data, frequency * (x >> SIXTEEN) + slot - first, at, end)
    return np.intp(yes), x, at


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
def begin(
    data: np.ndarray, x: np.uint32, at: np.uintp, end: np.uintp, rows: np.ndarray, i: int, t: int, columns: int,
    same: np.ndarray,
) -> tuple[int, np.uint32, np.uintp]:  # fmt: skip
    """Whether a code is the one of the record before: the tree's root if not, else -1 - code."""
    yes, x, at = answer(data, x, at, end, same[same_before(rows[i], rows[i - 1], t, columns)])
    return ~np.intp(rows[i - 1, t]) if yes else 0, x, at


@jit
def decode_mix(
    data: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
    heads: np.ndarray,
    weights: np.ndarray,
    first: np.ndarray,
    ways: np.ndarray,
    places: np.ndarray,
    u: np.ndarray,
    bias: np.ndarray,
    shift: int,
    table: np.ndarray,
    same: np.ndarray,
    columns: int,
    out: np.ndarray,
) -> int:
    """out: (B, T). heads: rows that stand alone, and the end; those between follow the row before.

    weights: (X, H, 8), first: (X, 8), ways: (X, 8, 2) of groups of nodes, see store.mix.grouped; H a multiple of 4.
    Two rows are decoded together: neither waits for its own last step.
    """
    steps, root = out.shape[1], EIGHT if len(weights) else -1
    units = weights.shape[1]
    sums = np.empty(len(bias), np.int32)
    h0, h1 = np.zeros(units, np.float32), np.zeros(units, np.float32)
    z0, z1 = np.empty(8, np.float32), np.empty(8, np.float32)
    for head in range(0, len(heads) - 1, 2):
        other = min(head + 1, len(heads) - 2)  # the last one fills up
        begin0, begin1 = heads[head], heads[other]
        count0, count1 = heads[head + 1] - begin0, heads[other + 1] - begin1
        for number in range(max(count0, count1)):
            i = begin0 + number if number < count0 else begin1 + number
            k = begin1 + number if number < count1 else i
            a0, a1 = np.uintp(starts[i]), np.uintp(starts[k])
            e0, e1 = a0 + np.uintp(sizes[i]), a1 + np.uintp(sizes[k])
            x0, x1 = first_state(data, a0), first_state(data, a1)
            a0, a1 = a0 + FOUR, a1 + FOUR
            for t in range(steps):
                g0 = g1 = root
                n0 = n1 = 0
                if number:
                    g0, x0, a0 = begin(data, x0, a0, e0, out, i, t, columns, same)
                    g1, x1, a1 = begin(data, x1, a1, e1, out, k, t, columns, same)
                    g0, g1 = root if g0 == 0 else g0, root if g1 == 0 else g1
                if g0 >= 0:
                    hide(out[i], t, columns, places, u, bias, sums, h0)
                if g1 >= 0:
                    hide(out[k], t, columns, places, u, bias, sums, h1)
                while g0 >= 0 or g1 >= 0:
                    if g0 >= EIGHT:
                        n0, g0 = g0 - EIGHT, 0
                        eight_sums(h0, weights[n0], first[n0], z0)
                    if g1 >= EIGHT:
                        n1, g1 = g1 - EIGHT, 0
                        eight_sums(h1, weights[n1], first[n1], z1)
                    if g0 >= 0:
                        yes, x0, a0 = answer(data, x0, a0, e0, slots(z0[g0], shift, table))
                        g0 = ways[n0, g0, yes]
                    if g1 >= 0:
                        yes, x1, a1 = answer(data, x1, a1, e1, slots(z1[g1], shift, table))
                        g1 = ways[n1, g1, yes]
                out[i, t], out[k, t] = ~g0, ~g1
            if x0 != LOW or x1 != LOW or a0 != e0 or a1 != e1:
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
    sums, hidden = np.empty(len(bias), np.int32), np.empty(len(bias), np.float32)
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
            hide(row, t, columns, places, u, bias, sums, hidden)
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
