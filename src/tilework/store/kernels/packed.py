"""Codes in a fixed number of bits: codec `packed`. Callers leave four readable bytes behind the last record.

B records | T codes
"""

from __future__ import annotations

import numpy as np

from tilework.core.compiled import jit
from tilework.store.kernels.streams import SIXTEEN, U32, word

U64 = np.uint64
TWO, THREE = U64(2), U64(3)


@jit
def decode_packed(data: np.ndarray, starts: np.ndarray, bits: int, vocabulary: int, out: np.ndarray) -> int:
    """out: (B, T). bits: at most 25."""
    count, length = out.shape
    size = (length * bits + 7) // 8
    width, mask = U64(bits), U64((1 << bits) - 1)
    fours = min(length // 4, (size - 8) * 8 // (4 * bits) + 1) if 4 * bits + 7 <= 64 and size >= 8 else 0
    for i in range(count):
        start, largest, row = np.uintp(starts[i]), U64(0), out[i]
        for four in range(fours):  # of one load, which may end with the record
            bit = np.uintp(4 * four * bits)
            at, held = start + (bit >> np.uintp(3)), U64(0)
            for k in range(8):  # becomes one load
                held |= U64(data[at + np.uintp(k)]) << U64(8 * k)
            held >>= U64(bit & np.uintp(7))
            a, b, c, d = held & mask, held >> width & mask, held >> (TWO * width) & mask, held >> (THREE * width) & mask
            row[4 * four], row[4 * four + 1], row[4 * four + 2], row[4 * four + 3] = a, b, c, d
            largest = max(max(largest, max(a, b)), max(c, d))
        for t in range(4 * fours, length):
            bit = np.uintp(t * bits)
            at = start + (bit >> np.uintp(3))
            code = U64((word(data, at) | word(data, at + np.uintp(2)) << SIXTEEN) >> U32(bit & np.uintp(7))) & mask
            largest = max(largest, code)
            row[t] = code
        if largest >= U64(vocabulary):
            return i
    return -1


@jit
def encode_packed(ids: np.ndarray, bits: int, out: np.ndarray) -> int:
    """ids: (B, T); out: (B, bytes of a record)."""
    for i in range(len(ids)):
        held, filled, at = np.uint64(0), np.uint64(0), 0
        for t in range(ids.shape[1]):
            held |= np.uint64(ids[i, t]) << filled
            filled += np.uint64(bits)
            while filled >= np.uint64(8):
                out[i, at] = held & np.uint64(255)
                held >>= np.uint64(8)
                filled -= np.uint64(8)
                at += 1
        if filled:
            out[i, at] = held & np.uint64(255)
    return -1
