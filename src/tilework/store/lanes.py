"""Range asymmetric numeral systems over lanes (Duda, 2013): every image is a stream of its own, all advance together.

A lane's state x stays in [2^16, 2^32); it moves 16 bits at a time to or from the lane's words. Frequencies of a step
sum to 2^precision. Encoding runs backwards, so that decoding reads words forwards. All arithmetic is on unsigned 32-bit
integers: the same bytes on every machine. A record is the final state (4 bytes) and the words, all little-endian.

B lanes | T steps
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilework.core.compiled import in_parts, kernels
from tilework.core.errors import DamageError
from tilework.store.codec import KERNELS

LOW = np.uint32(1 << 16)
_SIXTEEN = np.uint32(16)
COARSE = 4  # bits of a slot that coarse tables leave out
AHEAD = 4  # symbols that a kernel looks at together
WORTH_A_THREAD = 1 << 16  # codes


def quantise(counts: np.ndarray, precision: int) -> np.ndarray:
    """Frequencies that sum to 2^precision with at least 1 for every symbol, by largest remainder.

    counts: (..., K) non-negative integers; returns (..., K) uint32.
    """
    symbols = counts.shape[-1]
    spare = (1 << precision) - symbols
    if spare < 0:
        raise ValueError(f"{symbols} symbols do not fit 2^{precision} slots")
    flat = counts.reshape(-1, symbols).astype(np.int64)
    total = np.maximum(1, flat.sum(1, keepdims=True))
    whole, part = np.divmod(flat * spare, total)
    left = spare - whole.sum(1)  # of each row, still to be given away
    rank = np.argsort(np.argsort(-part, axis=1, kind="stable"), axis=1, kind="stable")
    given, rest = np.divmod(left, symbols)  # a row without counts gives to all alike
    frequencies = 1 + whole + given[:, None] + (rank < rest[:, None])
    return frequencies.reshape(counts.shape).astype(np.uint32)


def starts_of(frequencies: np.ndarray) -> np.ndarray:
    """First slot of each symbol. (..., K) to (..., K) uint32."""
    return (np.cumsum(frequencies, axis=-1) - frequencies).astype(np.uint32)


def encode_lanes(frequency: np.ndarray, start: np.ndarray, precision: int) -> tuple[bytes, np.ndarray]:
    """Records of all lanes, one after another, and their sizes. frequency, start: (T, B) uint32 of each symbol."""
    steps, lanes = frequency.shape
    if fast := kernels(KERNELS, frequency.size):
        out, sizes = np.empty(2 * lanes * (steps + 2), np.uint8), np.empty(lanes, np.int64)
        size = fast.encode_streams(frequency, start, precision, out, sizes)
        return out[:size].tobytes(), sizes
    words = np.empty((lanes, steps + 2), "<u2")
    flat = words.reshape(-1)
    end = np.arange(1, lanes + 1) * (steps + 2)  # one past the first word of each lane, from the back
    x = np.full(lanes, LOW)
    shift = np.uint32(precision)
    full = np.uint32(32 - precision)
    for step in range(steps - 1, -1, -1):
        f = frequency[step]
        over = np.flatnonzero((x >> full) >= f)  # these lanes would overflow
        if len(over):
            end[over] -= 1
            flat[end[over]] = x[over] & np.uint32(0xFFFF)
            x[over] >>= _SIXTEEN
        whole = x // f
        x = (whole << shift) + (x - whole * f) + start[step]
    flat[end - 1] = x >> _SIXTEEN
    flat[end - 2] = x & np.uint32(0xFFFF)
    first = end - 2 - np.arange(lanes) * (steps + 2)
    return words[np.arange(steps + 2) >= first[:, None]].tobytes(), 2 * (steps + 2 - first)


def check_sizes(sizes: np.ndarray, steps: int) -> None:
    """Refuse records that no stream of so many steps can have. sizes: (B,)."""
    if len(sizes) and (sizes.min() < 4 or sizes.max() > 4 + 2 * steps or (sizes & 1).any()):
        raise DamageError("a record is too short or too long for its stream", "restore the shard")


def decode_compiled(
    kernel: Callable[..., int],
    data: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
    arguments: tuple[Any, ...],
    out: np.ndarray,
) -> None:
    """Decode records by a kernel, on as many threads as there are. out: (B, ...), filled."""
    data, starts, sizes = within(data, starts, sizes)

    def decode(rows: slice) -> int:
        return kernel(data, starts[rows], sizes[rows], *arguments, out[rows])

    if len(out) and in_parts(decode, len(out), WORTH_A_THREAD * len(out) // max(1, out.size)) >= 0:
        raise DamageError("a record does not decode to its end", "restore the shard")


def within(data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Records that a kernel may read: all inside the data, with four more bytes behind the last one."""
    starts, sizes = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(sizes, np.int64)
    last = kernels(KERNELS).records_end(starts, sizes)
    if not 0 <= last <= len(data):
        raise DamageError("a record lies outside its shard", "restore the shard")
    return (data if last + 4 <= len(data) else np.append(data, np.zeros(4, np.uint8))), starts, sizes


def coarse_tables(symbols: np.ndarray, starts: np.ndarray, precision: int) -> tuple[np.ndarray, np.ndarray]:
    """Of kernels, for many tables: symbols of every 2^COARSEth slot, and first slots, (X, K + 1 + AHEAD), both uint16.

    symbols: (X 2^precision,) of every slot; starts: (X, K).
    """
    coarse = symbols.reshape(-1, 1 << precision)[:, :: 1 << COARSE].astype(np.uint16)
    return coarse, np.pad(starts, ((0, 0), (0, 1 + AHEAD)), constant_values=1 << precision).astype(np.uint16)


class LaneDecoder:
    """Any set of records, decoded together: `slot`, look the symbol up, `advance`; `finish` checks the end."""

    def __init__(self, data: np.ndarray, starts: np.ndarray, sizes: np.ndarray, precision: int, steps: int) -> None:
        check_sizes(sizes, steps)
        width = int(sizes.max(initial=4))
        offset = starts[:, None] + np.arange(width)
        records = data.take(offset, mode="clip")  # (B, width) bytes; what lies behind a record is never used
        words = records.view("<u2").astype(np.uint32)
        self._words = words.reshape(-1)
        self._at = np.arange(len(starts)) * (width // 2) + 2
        self._end = self._at - 2 + sizes // 2
        self._shift, self._mask = np.uint32(precision), np.uint32((1 << precision) - 1)
        self.x = words[:, 0] | words[:, 1] << _SIXTEEN if len(starts) else np.empty(0, np.uint32)

    def slot(self) -> np.ndarray:
        """Current slot of each lane, below 2^precision, (B,) uint32."""
        return self.x & self._mask

    def advance(self, frequency: np.ndarray, offset: np.ndarray) -> None:
        """Consume a symbol. frequency: (B,) of it; offset: (B,) slot minus its first slot."""
        x = frequency * (self.x >> self._shift) + offset
        short = np.flatnonzero(x < LOW)
        if len(short):
            at = self._at[short]
            x[short] = x[short] << _SIXTEEN | self._words.take(at, mode="clip")
            self._at[short] = at + 1
        self.x = x

    def ask(self, slots: np.ndarray, which: np.ndarray) -> np.ndarray:
        """Answers of some lanes, (B,) bool. slots: (B,) of 2^precision for True; which: (B,) lanes that are asked."""
        slot, whole = self.slot(), self._mask + np.uint32(1)
        answer = slot < slots
        frequency = np.where(which, np.where(answer, slots, whole - slots), whole)
        self.advance(frequency, slot - np.where(which & ~answer, slots, np.uint32(0)))
        return answer

    def finish(self) -> None:
        """Check that every lane ends in the initial state of the encoder, with no words left."""
        if (self.x != LOW).any() or (self._at != self._end).any():
            raise DamageError("a record does not decode to its end", "restore the shard")
