"""Streams of range asymmetric numeral systems, four of them taking turns: none waits for its own last step.

store/lanes.py does the same with numpy. Callers leave two readable bytes behind the last record.

B streams | T steps | K symbols | P precision
"""

from __future__ import annotations

import numpy as np

from tilework.core.compiled import jit

U32 = np.uint32
LOW = U32(1 << 16)
HALF = U32(0xFFFF)
SIXTEEN = U32(16)
EIGHT = U32(8)
ONE, TWO, FOUR = np.uintp(1), np.uintp(2), np.uintp(4)
TURNS = 16  # streams encoded together: their symbols of a step fill a cache line


@jit
def word(data: np.ndarray, at: np.uintp) -> np.uint32:
    """Two bytes, little-endian."""
    return U32(data[at]) | U32(data[at + ONE]) << EIGHT


@jit
def first_state(data: np.ndarray, at: np.uintp) -> np.uint32:
    """The state at the start of a record."""
    return word(data, at) | word(data, at + TWO) << SIXTEEN


@jit
def refill(data: np.ndarray, x: np.uint32, at: np.uintp, end: np.uintp) -> tuple[np.uint32, np.uintp]:
    """The state with its next word, if it needs one, and where the word after it lies; never reads beyond the end."""
    more = x << SIXTEEN | word(data, min(at, end))
    short = x < LOW
    return more if short else x, at + TWO if short else at


@jit
def take(
    data: np.ndarray,
    x: np.uint32,
    at: np.uintp,
    end: np.uintp,
    symbols: np.ndarray,
    pairs: np.ndarray,
    shift: np.uint32,
) -> tuple[np.uint32, np.uintp, int]:
    """One symbol. symbols: of each slot; pairs: frequency of each symbol, and its first slot times 2^16."""
    slot = x & ((U32(1) << shift) - U32(1))
    symbol = symbols[slot]
    pair = pairs[symbol]
    x, at = refill(data, (pair & HALF) * (x >> shift) + slot - (pair >> SIXTEEN), at, end)
    return x, at, symbol


@jit
def decode_static(
    data: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
    symbols: np.ndarray,
    pairs: np.ndarray,
    precision: int,
    out: np.ndarray,
) -> int:
    """Streams with one table. out: (B, T)."""
    count, steps = out.shape
    shift = U32(precision)
    for i in range(0, count, 4):
        j, k, m = min(i + 1, count - 1), min(i + 2, count - 1), min(i + 3, count - 1)  # the last one fills up
        a0, a1, a2, a3 = np.uintp(starts[i]), np.uintp(starts[j]), np.uintp(starts[k]), np.uintp(starts[m])
        e0, e1 = a0 + np.uintp(sizes[i]), a1 + np.uintp(sizes[j])
        e2, e3 = a2 + np.uintp(sizes[k]), a3 + np.uintp(sizes[m])
        x0, x1, x2, x3 = first_state(data, a0), first_state(data, a1), first_state(data, a2), first_state(data, a3)
        a0, a1, a2, a3 = a0 + FOUR, a1 + FOUR, a2 + FOUR, a3 + FOUR
        for t in range(steps):
            x0, a0, out[i, t] = take(data, x0, a0, e0, symbols, pairs, shift)
            x1, a1, out[j, t] = take(data, x1, a1, e1, symbols, pairs, shift)
            x2, a2, out[k, t] = take(data, x2, a2, e2, symbols, pairs, shift)
            x3, a3, out[m, t] = take(data, x3, a3, e3, symbols, pairs, shift)
        if x0 != LOW or x1 != LOW or x2 != LOW or x3 != LOW or a0 != e0 or a1 != e1 or a2 != e2 or a3 != e3:
            return i
    return -1


@jit
def encode_streams(frequency: np.ndarray, start: np.ndarray, precision: int, out: np.ndarray, sizes: np.ndarray) -> int:
    """Records, one after another. frequency, start: (T, B) of each symbol; out: 2 B (T + 2) bytes; sizes: (B,).

    Returns the number of bytes.
    """
    steps, count = frequency.shape
    shift, full = U32(precision), U32(32 - precision)
    x = np.empty(TURNS, np.uint32)
    end = np.empty(TURNS, np.intp)
    words = np.empty((TURNS, steps + 2), np.uint16)
    at = 0
    for first in range(0, count, TURNS):
        turns = min(TURNS, count - first)
        for k in range(turns):
            x[k], end[k] = LOW, steps + 2
        for step in range(steps - 1, -1, -1):
            for k in range(turns):
                f, state = frequency[step, first + k], x[k]
                if state >> full >= f:
                    end[k] -= 1
                    words[k, end[k]] = state & HALF
                    state >>= SIXTEEN
                whole = state // f
                x[k] = (whole << shift) + (state - whole * f) + start[step, first + k]
        for k in range(turns):
            end[k] -= 2
            words[k, end[k]], words[k, end[k] + 1] = x[k] & HALF, x[k] >> SIXTEEN
            for number in range(end[k], steps + 2):
                out[at], out[at + 1] = words[k, number] & 255, words[k, number] >> 8
                at += 2
            sizes[first + k] = 2 * (steps + 2 - end[k])
    return at
