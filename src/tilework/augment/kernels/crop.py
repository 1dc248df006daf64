"""Token-RRC of codes: four rows of the grid for each output row, then four positions of the result for each column.

Sums have a fixed order and no fused operations: the same numbers on every machine.

B batch | H, W code grid | K codes | C code dim | h, w output grid
"""

from __future__ import annotations

import numpy as np

from tilework.core.compiled import jit


@jit
def taps(scale: float, shift: float, source: int, places: np.ndarray, weights: np.ndarray) -> None:
    """The four positions each output reads and their bicubic weights: augment.crop.interpolation_taps of one image."""
    half, middle = np.float64(scale) * source / 2, (np.float64(shift) + 1) * source / 2
    low = min(max(np.rint(middle - abs(half)), 0.0), float(source))
    high = min(max(np.rint(middle + abs(half)), 0.0), float(source)) - 1
    target = len(places)
    for j in range(target):
        at = middle - 0.5 + half * ((2 * j + 1) / target - 1)
        base = np.floor(at)
        for k in range(4):
            places[j, k] = np.int64(max(min(max(base + k - 1, low), high), 0.0))
        t = at - base
        square = t * t
        cube = square * t
        weights[j, 0] = -0.75 * t + 1.5 * square - 0.75 * cube
        weights[j, 1] = 1 - 2.25 * square + 1.25 * cube
        weights[j, 2] = 0.75 * t + 1.5 * square - 1.25 * cube
        weights[j, 3] = -0.75 * square + 0.75 * cube


@jit
def outside(ids: np.ndarray, codes: int) -> bool:
    """Whether a code lies outside 0..codes - 1. ids: (H, W) int32."""
    largest = np.uint32(0)
    for y in range(ids.shape[0]):
        for x in range(ids.shape[1]):
            largest = max(largest, np.uint32(ids[y, x]))
    return largest >= np.uint32(codes)


@jit
def crop(ids: np.ndarray, affine: np.ndarray, out: np.ndarray, table: np.ndarray) -> int:
    """ids: (B, H, W); affine: (B, 2, 3) without rotation; out: (B, h, w, C); table: (K, C)."""
    batch, h, w, channels = out.shape
    height, width = ids.shape[1:]
    line = np.empty((width, channels), np.float32)  # a row of the grid at an output row
    rows, columns = np.empty((h, 4), np.int64), np.empty((w, 4), np.int64)
    row_weights, column_weights = np.empty((h, 4), np.float32), np.empty((w, 4), np.float32)
    for i in range(batch):
        if outside(ids[i], len(table)):
            return i
        taps(affine[i, 1, 1], affine[i, 1, 2], height, rows, row_weights)
        taps(affine[i, 0, 0], affine[i, 0, 2], width, columns, column_weights)
        first, last = columns.min(), columns.max()
        for y in range(h):
            w0, w1, w2, w3 = row_weights[y, 0], row_weights[y, 1], row_weights[y, 2], row_weights[y, 3]
            r0, r1, r2, r3 = ids[i, rows[y, 0]], ids[i, rows[y, 1]], ids[i, rows[y, 2]], ids[i, rows[y, 3]]
            for x in range(np.uintp(first), np.uintp(last + 1)):
                a, b, c, d = np.uintp(r0[x]), np.uintp(r1[x]), np.uintp(r2[x]), np.uintp(r3[x])
                for k in range(channels):
                    line[x, k] = w0 * table[a, k] + w1 * table[b, k] + w2 * table[c, k] + w3 * table[d, k]
            for x in range(w):
                a, b = np.uintp(columns[x, 0]), np.uintp(columns[x, 1])
                c, d = np.uintp(columns[x, 2]), np.uintp(columns[x, 3])
                w0, w1 = column_weights[x, 0], column_weights[x, 1]
                w2, w3 = column_weights[x, 2], column_weights[x, 3]
                for k in range(channels):
                    out[i, y, x, k] = w0 * line[a, k] + w1 * line[b, k] + w2 * line[c, k] + w3 * line[d, k]
    return -1


def check() -> None:
    """Raise if this machine does not compile or compute as it should."""
    ids, table = np.zeros((1, 4, 4), np.int32), np.ones((2, 3), np.float32)
    out = np.empty((1, 2, 2, 3), np.float32)
    crop(ids, np.array([[[1, 0, 0], [0, 1, 0]]], np.float32), out, table)
    if np.abs(out - 1).max() > 1e-6:
        raise RuntimeError("a compiled kernel gave a wrong result")
