"""Order-0 entropy coding: one static table per data set.

Vocabularies above 2^12 code the high part of each id and keep its low bits as they are.

B images | T tokens per image | K codes
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from tilework.core.compiled import kernels
from tilework.core.errors import DamageError
from tilework.store.codec import KERNELS, check_codes, codecs
from tilework.store.lanes import LaneDecoder, check_sizes, decode_compiled, encode_lanes, quantise, starts_of
from tilework.store.packed import Packed

PRECISION = 14
CODED_BITS = 12


class Rans:
    """Entropy coding by code frequency."""

    def __init__(self, frequencies: np.ndarray, length: int, vocabulary: int) -> None:
        self.length = length
        self.vocabulary = vocabulary
        self.low_bits = low_bits_of(vocabulary)
        self.frequencies = frequencies.astype(np.uint32)  # (K,) of the coded parts
        self.starts = starts_of(self.frequencies)
        symbol = np.repeat(np.arange(len(frequencies), dtype=np.uint32), frequencies)  # of each slot
        self._symbol = symbol.astype(np.int32)
        self._frequency = self.frequencies[symbol]
        self._offset = np.arange(len(symbol), dtype=np.uint32) - self.starts[symbol]
        self._low = Packed(length, 1 << self.low_bits) if self.low_bits else None

    @staticmethod
    def fit(ids: np.ndarray, vocabulary: int, columns: int = 1) -> Rans:
        """Count a sample. ids: (B, T)."""
        high = ids >> low_bits_of(vocabulary)
        counts = np.bincount(high.ravel(), minlength=coded_size(vocabulary))
        return Rans(quantise(counts, PRECISION), ids.shape[1], vocabulary)

    @staticmethod
    def load(tables: dict[str, np.ndarray], length: int, vocabulary: int, columns: int = 1) -> Rans:
        """The codec that wrote a store; refuses malformed tables."""
        frequencies = tables.get("frequencies", np.empty(0))
        right = frequencies.shape == (coded_size(vocabulary),) and frequencies.dtype == np.uint16
        if not right or frequencies.min() < 1 or frequencies.sum(dtype=np.int64) != 1 << PRECISION:
            raise DamageError("the frequency table of the store is malformed", "restore tables.safetensors")
        return Rans(frequencies, length, vocabulary)

    def tables(self) -> dict[str, np.ndarray]:
        """Frequencies of the coded parts."""
        return {"frequencies": self.frequencies.astype(np.uint16)}

    def encode(self, ids: np.ndarray) -> tuple[bytes, np.ndarray]:
        """ids: (B, T). Returns the records and their sizes."""
        check_codes(ids, self.vocabulary)
        high = (ids >> self.low_bits).T  # (T, B)
        records, sizes = encode_lanes(self.frequencies[high], self.starts[high], PRECISION)
        if self._low is None:
            return records, sizes
        low, low_sizes = self._low.encode(ids & ((1 << self.low_bits) - 1))
        return interleave(low, low_sizes, records, sizes), sizes + low_sizes

    def decode(self, data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Returns (B, T) int32."""
        skip = self._low.size if self._low is not None else 0
        out = self._decode_high(data, starts + skip, sizes - skip)
        if self._low is not None:
            out = out << self.low_bits | self._low.decode(data, starts, np.full(len(starts), skip))
            if out.size and out.max() >= self.vocabulary:
                raise DamageError(f"a record holds code {out.max()} of {self.vocabulary}", "restore the shard")
        return out

    def _decode_high(self, data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """The coded parts, (B, T) int32."""
        check_sizes(sizes, self.length)
        if fast := kernels(KERNELS, len(starts) * self.length):
            out = np.empty((len(starts), self.length), np.int32)
            decode_compiled(fast.decode_static, data, starts, sizes, (*self._tables, PRECISION), out)
            return out
        lanes = LaneDecoder(data, starts, sizes, PRECISION, self.length)
        ids = np.empty((self.length, len(starts)), np.int32)
        for step in range(self.length):
            slot = lanes.slot()
            ids[step] = self._symbol.take(slot)
            lanes.advance(self._frequency.take(slot), self._offset.take(slot))
        lanes.finish()
        return np.ascontiguousarray(ids.T)

    @cached_property
    def _tables(self) -> tuple[np.ndarray, np.ndarray]:
        """Of kernels: the symbol of each slot; frequency of a symbol, and its first slot times 2^16."""
        return self._symbol.astype(np.uint16), self.frequencies | self.starts << np.uint32(16)


def low_bits_of(vocabulary: int) -> int:
    """How many bits of each code are kept as they are."""
    return max(0, (vocabulary - 1).bit_length() - CODED_BITS)


def coded_size(vocabulary: int) -> int:
    """How many different coded parts there are."""
    return (vocabulary - 1 >> low_bits_of(vocabulary)) + 1


def interleave(first: bytes, first_sizes: np.ndarray, second: bytes, second_sizes: np.ndarray) -> bytes:
    """Two parts of every record, joined record by record."""
    out = bytearray()
    a = b = 0
    for left, right in zip(first_sizes.tolist(), second_sizes.tolist(), strict=True):
        out += first[a : a + left]
        out += second[b : b + right]
        a, b = a + left, b + right
    return bytes(out)


codecs.add("rans")(Rans)
