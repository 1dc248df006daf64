"""Token-EDA of codes: synonyms, then two squares that change places.

B batch | H, W code grid | K codes | n synonyms of a code
"""

from __future__ import annotations

import numpy as np

from tilework.augment.kernels.crop import outside
from tilework.core.compiled import jit


@jit
def squares(u: np.ndarray, side: np.ndarray, height: int, width: int, first: np.ndarray, second: np.ndarray) -> int:
    """Corners of two squares: token_eda.sample_squares. u: (B, 3) float32; side: (B,), set to 0 where none fit."""
    for i in range(len(side)):
        rows, columns = height - side[i] + 1, width - side[i] + 1
        row, column = np.int64(u[i, 0] * np.float32(rows)), np.int64(u[i, 1] * np.float32(columns))
        top, left = max(row - side[i], 0), max(column - side[i], 0)
        high, wide = min(row + side[i] + 1, rows) - top, min(column + side[i] + 1, columns) - left
        free, apart = columns - wide, rows * columns - high * wide
        number = np.int64(u[i, 2] * np.float32(apart))
        at = number - top * columns
        if at < 0:  # above the block of corners too near
            down, across = number // columns, number % columns
        elif at < high * free:  # beside it
            down, across = top + at // max(free, 1), at % max(free, 1)
            across += wide if across >= left else 0
        else:
            down, across = top + high + (at - high * free) // columns, (at - high * free) % columns
        first[i, 0], first[i, 1], second[i, 0], second[i, 1] = row, column, down, across
        side[i] = side[i] if apart > 0 else 0
    return -1


@jit
def edit(
    ids: np.ndarray,
    dense: np.ndarray,
    factor: np.ndarray,
    side: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    out: np.ndarray,
    table: np.ndarray,
) -> int:
    """ids, out: (B, H, W); table: (K, n + 1), each code itself last; dense: (B, H, W) in [0, 1); factor: (B,).

    dense times factor, rounded down and at most n, is the number of the synonym.
    """
    batch, height, width = ids.shape
    count = table.shape[1] - 1
    most = np.float32(count)
    for i in range(batch):
        if outside(ids[i], len(table)):
            return i
        times = factor[i]
        for y in range(height):
            for x in range(width):
                chosen, code = dense[i, y, x] * times, ids[i, y, x]
                out[i, y, x] = table[code, np.int64(chosen)] if chosen < most else code
        top, left, down, across = first[i, 0], first[i, 1], second[i, 0], second[i, 1]
        for y in range(side[i]):
            for x in range(side[i]):
                code = out[i, top + y, left + x]
                out[i, top + y, left + x] = out[i, down + y, across + x]
                out[i, down + y, across + x] = code
    return -1
