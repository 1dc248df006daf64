"""Codes in ceil(log2 K) bits each, least significant bit first.

B images | T tokens per image | K codes
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

import numpy as np

from tilework.core.compiled import in_parts, kernels
from tilework.core.errors import DamageError
from tilework.store.codec import KERNELS, check_codes, codecs
from tilework.store.lanes import WORTH_A_THREAD, within

TOGETHER = 1 << 17  # codes in portions that stay in the cache


class Packed:
    """Fixed-width codes; every record has the same size."""

    def __init__(self, length: int, vocabulary: int) -> None:
        self.length = length
        self.vocabulary = vocabulary
        self.bits = max(1, (vocabulary - 1).bit_length())
        self.size = -(-length * self.bits // 8)  # bytes of a record

    @staticmethod
    def fit(ids: np.ndarray, vocabulary: int, columns: int = 1) -> Packed:
        """A codec without tables."""
        return Packed(ids.shape[1], vocabulary)

    @staticmethod
    def load(tables: dict[str, np.ndarray], length: int, vocabulary: int, columns: int = 1) -> Packed:
        """The codec that wrote a store; it has no tables."""
        return Packed(length, vocabulary)

    def tables(self) -> dict[str, np.ndarray]:
        """No tables."""
        return {}

    def encode(self, ids: np.ndarray) -> tuple[bytes, np.ndarray]:
        """ids: (B, T). Returns the records and their sizes."""
        check_codes(ids, self.vocabulary)
        records = np.empty((len(ids), self.size), np.uint8)
        if fast := kernels(KERNELS, ids.size):
            fast.encode_packed(ids.astype(np.int64, copy=False), self.bits, records)
        else:
            for part in self._portions(len(ids)):
                records[part] = self._bytes(ids[part])
        return records.tobytes(), np.full(len(ids), self.size, np.int64)

    def decode(self, data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Returns (B, T) int32."""
        if (sizes != self.size).any():
            raise DamageError("a packed record does not have the size of its codes", "restore the shard")
        ids = np.empty((len(starts), self.length), np.int32)
        if fast := kernels(KERNELS, ids.size):
            data, starts, _ = within(data, starts, sizes)

            def decode(rows: slice) -> int:
                return fast.decode_packed(data, starts[rows], self.bits, self.vocabulary, ids[rows])

            bad = in_parts(decode, len(ids), WORTH_A_THREAD // self.length) >= 0
        else:
            for part in self._portions(len(starts)):
                ids[part] = self._codes(data, starts[part])
            bad = bool(ids.size) and ids.max() >= self.vocabulary
        if bad:
            raise DamageError(f"a record holds code {ids.max()} of {self.vocabulary}", "restore the shard")
        return ids

    # Codes come in groups of G that fill S whole bytes: those at one place of their group begin at the same bit of a
    # byte, and are handled together.

    def _places(self) -> Iterator[tuple[slice, list[slice], int]]:
        """Of each place in a group: its codes, the bytes they touch, lowest first, and their first bit there."""
        group = 8 // gcd(8, self.bits)
        step, groups = group * self.bits // 8, -(-self.length // group)
        for place in range(group):
            byte, bit = divmod(place * self.bits, 8)
            touched = range(byte, byte + (bit + self.bits + 7) // 8)
            yield slice(place, None, group), [slice(k, k + (groups - 1) * step + 1, step) for k in touched], bit

    def _room(self) -> int:
        """Bytes of a record that ends with a whole group."""
        group = 8 // gcd(8, self.bits)
        return -(-self.length // group) * group * self.bits // 8

    def _bytes(self, ids: np.ndarray) -> np.ndarray:
        """Records of codes. ids: (b, T); returns (b, size)."""
        records = np.zeros((len(ids), self._room()), np.uint8)
        for codes, touched, bit in self._places():
            some = ids[:, codes].astype(np.uint32) << np.uint32(bit)
            for number, where in enumerate(touched):
                records[:, where][:, : some.shape[1]] |= (some >> np.uint32(8 * number)).astype(np.uint8)
        return records[:, : self.size]

    def _codes(self, data: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Codes of records, (b, T)."""
        records = np.zeros((len(starts), self._room()), np.uint8)
        records[:, : self.size] = data[starts[:, None] + np.arange(self.size)]
        ids = np.empty((len(starts), self.length), np.int32)
        for codes, touched, bit in self._places():
            some = records[:, touched[0]].astype(np.uint32)
            for number, where in enumerate(touched[1:], 1):
                some |= records[:, where].astype(np.uint32) << np.uint32(8 * number)
            some = some >> np.uint32(bit) & np.uint32((1 << self.bits) - 1)
            ids[:, codes] = some[:, : len(range(self.length)[codes])]
        return ids

    def _portions(self, count: int) -> Iterator[slice]:
        """Records in portions whose bits fit into memory."""
        portion = max(1, TOGETHER // self.length)
        return (slice(at, at + portion) for at in range(0, count, portion))


codecs.add("packed")(Packed)
