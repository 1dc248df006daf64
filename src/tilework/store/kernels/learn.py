"""Learning the network of codec `mix`: Adagrad (Duchi et al., 2011), code by code.

P codes | K codes of the vocabulary | Q neighbours | H hidden units | D longest path
"""

from __future__ import annotations

import numpy as np

from tilework.core.compiled import jit_any_order

TINY = np.float32(1e-8)


@jit_any_order
def learn_mix(
    order: np.ndarray,
    near: np.ndarray,
    ids: np.ndarray,
    nodes: np.ndarray,
    answers: np.ndarray,
    u: np.ndarray,
    bias: np.ndarray,
    v: np.ndarray,
    c: np.ndarray,
    squares_u: np.ndarray,
    squares_bias: np.ndarray,
    squares_v: np.ndarray,
    squares_c: np.ndarray,
    rate: np.float32,
    pull: np.float32,
) -> float:
    """One pass over codes; weights change in place. near: (P, Q); ids: (P,). Returns the bits they cost on the way."""
    units = len(bias)
    a, h, back = np.empty(units, np.float32), np.empty(units, np.float32), np.empty(units, np.float32)
    bits = 0.0
    one = np.float32(1)
    for t in order:
        for j in range(units):
            a[j] = bias[j]
        for q in range(len(u)):
            part = u[q, near[t, q]]
            for j in range(units):
                a[j] += part[j]
        for j in range(units):
            h[j] = min(max(a[j], -one), one)
            back[j] = 0
        code = ids[t]
        for k in range(nodes.shape[1]):
            node = nodes[code, k]
            if node < 0:
                break
            weights, squares, z = v[node], squares_v[node], c[node]
            for j in range(units):
                z += h[j] * weights[j]
            p = one / (one + np.exp(-z))
            answer = np.float32(answers[code, k])
            bits -= np.log2(max(p * answer + (one - p) * (one - answer), np.float32(1e-6)))
            g = p - answer
            squares_c[node] += g * g
            c[node] -= rate * g / np.sqrt(squares_c[node] + TINY)
            for j in range(units):
                back[j] += g * weights[j]
                step = g * h[j]
                squares[j] += step * step
                weights[j] -= rate * step / np.sqrt(squares[j] + TINY)
        for j in range(units):
            back[j] = back[j] if abs(a[j]) < one or a[j] * back[j] > 0 else np.float32(0)  # may come back inside
            squares_bias[j] += back[j] * back[j]
            bias[j] -= rate * back[j] / np.sqrt(squares_bias[j] + TINY)
        for q in range(len(u)):
            part, squares = u[q, near[t, q]], squares_u[q, near[t, q]]
            for j in range(units):
                step = back[j] + pull * part[j]
                squares[j] += step * step
                part[j] = min(max(part[j] - rate * step / np.sqrt(squares[j] + TINY), -one), one)
    return bits
