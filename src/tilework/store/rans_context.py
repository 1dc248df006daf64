"""Entropy coding by neighbourhood: a static table for each pair of clusters of the left and the upper code.

Codes that are followed by alike codes share a cluster. Each neighbour has clusters of its own, and one for "outside".

B images | T = H W tokens per image | K codes | M clusters | X = (M + 1)^2 contexts
"""

from __future__ import annotations

import zlib
from functools import cached_property

import numpy as np

from tilework.core.compiled import kernels
from tilework.core.errors import DamageError, InputError
from tilework.store.codec import KERNELS, check_codes, codecs
from tilework.store.lanes import (
    LaneDecoder,
    check_sizes,
    coarse_tables,
    decode_compiled,
    encode_lanes,
    quantise,
    starts_of,
)

PRECISION = 12
LARGEST_VOCABULARY = 1 << PRECISION - 1
CLUSTERS = (4, 8, 16, 24)
ROUNDS = 12
LARGEST_CLUSTERS = 63  # 2^12 contexts of 2^12 slots each


class RansContext:
    """Entropy coding conditioned on the clusters of the left and upper neighbour."""

    def __init__(self, left: np.ndarray, above: np.ndarray, frequencies: np.ndarray, columns: int, length: int) -> None:
        self.columns, self.length, self.vocabulary = columns, length, frequencies.shape[1]
        self.left, self.above = left.astype(np.int32), above.astype(np.int32)  # (K,) cluster of each code
        self.outside = int(np.sqrt(len(frequencies))) - 1  # M, the cluster of what lies outside
        self.frequencies = frequencies.astype(np.uint32)  # (X, K)
        self.starts = starts_of(self.frequencies)
        slots = np.tile(np.arange(self.vocabulary, dtype=np.int32), len(frequencies))
        self._symbol = np.repeat(slots, self.frequencies.ravel())  # (X << PRECISION,)
        self._pair = self.frequencies.ravel() | self.starts.ravel() << np.uint32(16)  # one look-up for both

    @staticmethod
    def fit(ids: np.ndarray, vocabulary: int, columns: int) -> RansContext:
        """Clusters and tables fitted to a sample; the number of clusters minimises bytes, tables included."""
        if vocabulary > LARGEST_VOCABULARY:
            raise InputError(f"a vocabulary of {vocabulary} is too large for neighbour tables", "use codec 'rans'")
        before_left, before_above = _neighbours(ids, columns, vocabulary)
        tries = []
        for count in [c for c in CLUSTERS if c < vocabulary] or [1]:
            left = _cluster(before_left, ids, vocabulary, count)
            above = _cluster(before_above, ids, vocabulary, count)
            contexts = np.append(left, count)[before_left] * (count + 1) + np.append(above, count)[before_above]
            size = (count + 1) ** 2
            counts = np.bincount((contexts * vocabulary + ids).ravel(), minlength=size * vocabulary)
            counts = counts.reshape(size, vocabulary)
            codec = RansContext(left, above, quantise(counts, PRECISION), columns, ids.shape[1])
            bits = -(counts * np.log2(codec.frequencies / (1 << PRECISION))).sum()
            tries.append((bits / 8 + codec.tables()["frequencies"].nbytes, count, codec))
        return min(tries, key=lambda one: one[:2])[2]

    @staticmethod
    def load(tables: dict[str, np.ndarray], length: int, vocabulary: int, columns: int) -> RansContext:
        """The codec that wrote a store; refuses malformed tables."""
        try:
            left, above = tables["left"], tables["above"]
            if {table.dtype for table in tables.values()} != {np.dtype(np.uint8)} or vocabulary > LARGEST_VOCABULARY:
                raise ValueError("types")
            outside = int(tables["clusters"].item())
            size = (outside + 1) ** 2 * vocabulary * 2
            maps = np.stack([left, above])
            if (
                maps.shape != (2, vocabulary)
                or not 0 <= maps.min() <= maps.max() < outside
                or outside > LARGEST_CLUSTERS
            ):
                raise ValueError("clusters")
            unpacker = zlib.decompressobj()
            raw = unpacker.decompress(tables["frequencies"].tobytes(), size + 1)
            frequencies = np.frombuffer(raw, "<u2").reshape(-1, vocabulary)
            if len(raw) != size or not unpacker.eof or frequencies.min() < 1:
                raise ValueError("frequencies")
            if (frequencies.sum(1, dtype=np.int64) != 1 << PRECISION).any():
                raise ValueError("sums")
        except (KeyError, IndexError, ValueError, TypeError, zlib.error) as error:
            raise DamageError(
                "the neighbour tables of the store are malformed", "restore tables.safetensors"
            ) from error
        return RansContext(left, above, frequencies, columns, length)

    def tables(self) -> dict[str, np.ndarray]:
        """Clusters, and the frequencies as deflated 16-bit integers."""
        return {
            "clusters": np.array([self.outside], np.uint8),
            "left": self.left.astype(np.uint8),
            "above": self.above.astype(np.uint8),
            "frequencies": np.frombuffer(self._packed, np.uint8),
        }

    @cached_property
    def _packed(self) -> bytes:
        return zlib.compress(self.frequencies.astype("<u2").tobytes(), 6)

    def encode(self, ids: np.ndarray) -> tuple[bytes, np.ndarray]:
        """ids: (B, T). Returns the records and their sizes."""
        check_codes(ids, self.vocabulary)
        before_left, before_above = _neighbours(ids, self.columns, self.vocabulary)
        left, above = np.append(self.left, self.outside), np.append(self.above, self.outside)
        contexts = left[before_left] * (self.outside + 1) + above[before_above]
        entry = (contexts.astype(np.int64) * self.vocabulary + ids).T  # (T, B)
        return encode_lanes(self.frequencies.ravel()[entry], self.starts.ravel()[entry], PRECISION)

    def decode(self, data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Returns (B, T) int32."""
        check_sizes(sizes, self.length)
        if fast := kernels(KERNELS, len(starts) * self.length):
            out = np.empty((len(starts), self.length), np.int32)
            arguments = (*self._tables, self.columns, PRECISION)
            decode_compiled(fast.decode_context, data, starts, sizes, arguments, out)
            return out
        lanes = LaneDecoder(data, starts, sizes, PRECISION, self.length)
        ids = np.empty((self.length, len(starts)), np.int32)
        left = (self.left * (self.outside + 1)).astype(np.int32)  # of the context number
        edge_left = np.full(len(starts), self.outside * (self.outside + 1), np.int32)
        edge_above = np.full(len(starts), self.outside, np.int32)
        for step in range(self.length):
            context = edge_left if step % self.columns == 0 else left.take(ids[step - 1])
            context = context + (edge_above if step < self.columns else self.above.take(ids[step - self.columns]))
            slot = lanes.slot()
            symbol = self._symbol.take((context << PRECISION) + slot.view(np.int32))
            ids[step] = symbol
            pair = self._pair.take(context * self.vocabulary + symbol)
            lanes.advance(pair & np.uint32(0xFFFF), slot - (pair >> np.uint32(16)))
        lanes.finish()
        return np.ascontiguousarray(ids.T)

    @cached_property
    def _tables(self) -> tuple[np.ndarray, ...]:
        """Of kernels: coarse tables, and parts of a table's number, (K + 1,) each."""
        left, above = (np.append(part, self.outside) for part in (self.left, self.above))
        return *coarse_tables(self._symbol, self.starts, PRECISION), left * (self.outside + 1), above


def _neighbours(ids: np.ndarray, columns: int, outside: int) -> tuple[np.ndarray, np.ndarray]:
    """Left and upper neighbour of each code, `outside` beyond the edges. ids: (B, T); two of (B, T)."""
    grid = ids.reshape(len(ids), -1, columns)
    left, above = np.full_like(grid, outside), np.full_like(grid, outside)
    left[:, :, 1:] = grid[:, :, :-1]
    above[:, 1:] = grid[:, :-1]
    return left.reshape(ids.shape), above.reshape(ids.shape)


def _cluster(before: np.ndarray, ids: np.ndarray, vocabulary: int, count: int) -> np.ndarray:
    """Clusters of codes by what follows them: k-means of square-root distributions. Returns (K,) int32."""
    inside = before < vocabulary
    pairs = before[inside].astype(np.int64) * vocabulary + ids[inside]
    counts = np.bincount(pairs, minlength=vocabulary**2).reshape(vocabulary, vocabulary).astype(np.float64)
    mass = counts.sum(1)
    prior = 0.05 * mass.mean() * counts.sum(0) / max(1, counts.sum())  # rare codes lean towards the average
    points = np.sqrt((counts + prior) / (mass[:, None] + prior.sum() + 1e-9))
    centres = points[np.argsort(-mass, kind="stable")[:count]]
    owner = np.zeros(vocabulary, np.int64)
    for _ in range(ROUNDS):
        distance = (points**2).sum(1)[:, None] - 2 * points @ centres.T + (centres**2).sum(1)
        owner = distance.argmin(1)
        for cluster in range(count):
            members = owner == cluster
            weight = mass[members]
            if weight.sum() > 0:
                centres[cluster] = (points[members] * weight[:, None]).sum(0) / weight.sum()
            else:  # an empty cluster takes the code that costs most
                centres[cluster] = points[(mass * distance.min(1)).argmax()]
    return owner.astype(np.int32)


codecs.add("rans-context")(RansContext)
