"""Learning the network of codec `mix`: answers at the nodes of the tree, and what they say about the hidden units.

B codes of a step | K codes of the vocabulary | H hidden units | D longest path | N inputs of a code
"""

from __future__ import annotations

import numpy as np

from tilework.core.compiled import jit_any_order


@jit_any_order
def learn_tree(
    hidden: np.ndarray, ids: np.ndarray, nodes: np.ndarray, answers: np.ndarray, v: np.ndarray, c: np.ndarray,
    slope_v: np.ndarray, slope_c: np.ndarray, back: np.ndarray,
) -> float:  # fmt: skip
    """Bits of codes, and the slopes of their logarithmic loss. hidden: (B, H) float32; ids: (B,).

    slope_v, slope_c: as v and c, added to; back: (B, H), filled.
    """
    bits, one, units = 0.0, np.float32(1), hidden.shape[1]
    for i in range(len(ids)):
        code, h, g_h = ids[i], hidden[i], back[i]
        for j in range(units):
            g_h[j] = 0
        for k in range(nodes.shape[1]):
            node = nodes[code, k]
            if node < 0:
                break
            weights, slope, z = v[node], slope_v[node], c[node]
            for j in range(units):
                z += h[j] * weights[j]
            p = one / (one + np.exp(-z))
            answer = np.float32(answers[code, k])
            bits -= np.log2(max(p * answer + (one - p) * (one - answer), np.float32(1e-6)))
            g = p - answer
            slope_c[node] += g
            for j in range(units):
                g_h[j] += g * weights[j]
                slope[j] += g * h[j]
    return bits


@jit_any_order
def gather_rows(table: np.ndarray, which: np.ndarray, out: np.ndarray) -> int:
    """Rows of a table side by side. which: (B, Q); out: (B, Q width)."""
    width = table.shape[1]
    for i in range(len(which)):
        for q in range(which.shape[1]):
            row = table[which[i, q]]
            for j in range(width):
                out[i, q * width + j] = row[j]
    return -1


@jit_any_order
def scatter_rows(slopes: np.ndarray, which: np.ndarray, out: np.ndarray) -> int:
    """The way back of `gather_rows`: added to the rows they came from. slopes: (B, Q width); out: as the table."""
    width = out.shape[1]
    for i in range(len(which)):
        for q in range(which.shape[1]):
            row = out[which[i, q]]
            for j in range(width):
                row[j] += slopes[i, q * width + j]
    return -1
