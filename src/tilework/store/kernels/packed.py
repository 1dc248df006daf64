"""Codes in a fixed number of bits: codec `packed`. Callers leave four readable bytes behind the last record.

B records | T codes
"""

from __future__ import annotations

import numpy as np

from tilework.core.compiled import jit
from tilework.store.kernels.streams import SIXTEEN, TWO, U32, word


@jit
def decode_packed(data: np.ndarray, starts: np.ndarray, bits: int, vocabulary: int, out: np.ndarray) -> int:
    """out: (B, T). bits: at most 25."""
    count, length = out.shape
    mask = U32((1 << bits) - 1)
    for i in range(count):
        start, largest = np.uintp(starts[i]), U32(0)
        for t in range(length):
            bit = np.uintp(t * bits)
            at = start + (bit >> np.uintp(3))
            code = (word(data, at) | word(data, at + TWO) << SIXTEEN) >> U32(bit & np.uintp(7)) & mask
            largest = max(largest, code)
            out[i, t] = code
        if largest >= U32(vocabulary):
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
