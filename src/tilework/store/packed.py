"""Codes in ceil(log2 K) bits each, least significant bit first.

B images | T tokens per image | K codes
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilework.core.errors import DamageError
from tilework.store.codec import check_codes, codecs

TOGETHER = 1 << 22  # codes in portions


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
        for part in self._portions(len(ids)):
            bits = (ids[part, :, None].astype(np.int64) >> np.arange(self.bits)) & 1  # (b, T, bits)
            flat = bits.astype(np.uint8).reshape(len(bits), self.length * self.bits)
            records[part] = np.packbits(flat, axis=1, bitorder="little")
        return records.tobytes(), np.full(len(ids), self.size, np.int64)

    def decode(self, data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Returns (B, T) int32."""
        if (sizes != self.size).any():
            raise DamageError("a packed record does not have the size of its codes", "restore the shard")
        ids = np.empty((len(starts), self.length), np.int32)
        weights = (1 << np.arange(self.bits)).astype(np.int32)
        for part in self._portions(len(starts)):
            records = data[starts[part, None] + np.arange(self.size)]  # (b, size)
            bits = np.unpackbits(records, axis=1, count=self.length * self.bits, bitorder="little")
            ids[part] = bits.reshape(len(records), self.length, self.bits) @ weights
        if ids.size and ids.max() >= self.vocabulary:
            raise DamageError(f"a record holds code {ids.max()} of {self.vocabulary}", "restore the shard")
        return ids

    def _portions(self, count: int) -> Iterator[slice]:
        """Records in portions whose bits fit into memory."""
        portion = max(1, TOGETHER // self.length)
        return (slice(at, at + portion) for at in range(0, count, portion))


codecs.add("packed")(Packed)
