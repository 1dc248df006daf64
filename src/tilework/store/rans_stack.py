"""Entropy coding of positions with several codes: how many of them matter, then those, by the position before.

A position is a stack of codes, each of a kind of its own, as the DCT coefficients of a block. Most are the commonest
of their kind. The kinds are sorted by how often they are not; a position then says how many leading kinds hold all its
uncommon codes, and only these are coded, each by a table of its kind and of a class of the code that its kind had at
the position before.

B images | T codes of an image = P positions x G kinds | K codes | X tables | A symbols of a table
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
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

PRECISION = 14
LARGEST_VOCABULARY = 1 << 12
LARGEST_STACK = 1 << 8
MOST_TABLES = 1 << 10
FINE = 16  # kinds whose neighbours may have as many classes; others have three or none
TOGETHER = 1 << 22  # codes encoded at once


class RansStack:
    """Entropy coding of stacked codes, conditioned on the same kind at the previous position."""

    def __init__(
        self, order: np.ndarray, common: np.ndarray, classes: np.ndarray, frequencies: np.ndarray, length: int
    ) -> None:
        self.order, self.common = order.astype(np.int64), common.astype(np.int32)  # (G,) kinds; their commonest codes
        self.classes = classes.astype(np.int32)  # (G, K) of a code as a neighbour, kinds in order
        self.length, (self.kinds, self.vocabulary) = length, classes.shape
        self.frequencies = frequencies.astype(np.uint32)  # (X, A): of extents, of codes, and of a stream that has ended
        self.starts = starts_of(self.frequencies)
        counts = self.classes.max(1) + 1
        self._first = _extent_classes(self.kinds)[-1] + 1 + np.cumsum(counts) - counts  # (G,) table of each kind
        self._ended = len(frequencies) - 1

    @staticmethod
    def fit(ids: np.ndarray, vocabulary: int, columns: int) -> RansStack:
        """Tables of a sample; classes of neighbours where they save more than their tables cost."""
        if vocabulary > LARGEST_VOCABULARY or columns > LARGEST_STACK:
            what = f"stacks of {columns} codes out of {vocabulary}"
            raise InputError(f"{what} are too large for their tables", "use codec 'packed'")
        counts = np.stack([np.bincount(kind, minlength=vocabulary) for kind in ids.reshape(-1, columns).T])  # (G, K)
        order = np.argsort(counts.max(1), kind="stable")
        common = counts.argmax(1)[order]
        stacks = ids.reshape(len(ids), -1, columns)[:, :, order]
        extents = _extents(stacks, common)
        before = _before(stacks, common)
        heads = _extent_classes(columns)[_before(extents[:, :, None], np.zeros(1, np.int64))[:, :, 0]]
        size = (int(_extent_classes(columns)[-1]) + 1) * (columns + 1)
        seen = np.bincount((heads * (columns + 1) + extents).ravel(), minlength=size).reshape(-1, columns + 1)
        classes, tables = [], [seen]
        for kind in range(columns):
            live = extents > kind
            tries = [
                _counted(stacks[:, :, kind][live], before[:, :, kind][live], split)
                for split in _splits(before[:, :, kind][live], int(common[kind]), vocabulary, kind < FINE)
            ]
            _, split, table = min(tries, key=lambda one: one[0])
            classes.append(split)
            tables.append(table)
        symbols = max(vocabulary, columns + 1)
        rows = [np.pad(quantise(t, PRECISION), ((0, 0), (0, symbols - t.shape[1]))) for t in tables]
        return RansStack(order, common, np.stack(classes), np.concatenate([*rows, _rest(symbols)]), ids.shape[1])

    @staticmethod
    def load(tables: dict[str, np.ndarray], length: int, vocabulary: int, columns: int) -> RansStack:
        """The codec that wrote a store; refuses malformed tables."""
        try:
            order, common = tables["order"], tables["common"]
            if {order.dtype, common.dtype} != {np.dtype(np.uint16)} or tables["classes"].dtype != np.uint8:
                raise ValueError("types")
            if vocabulary > LARGEST_VOCABULARY or columns > LARGEST_STACK or length % columns:
                raise ValueError("sizes")
            if not np.array_equal(np.sort(order), np.arange(columns)) or common.shape != order.shape:
                raise ValueError("order")
            if common.max() >= vocabulary:
                raise ValueError("common codes")
            classes = _inflate(tables["classes"], columns * vocabulary, np.uint8).reshape(columns, vocabulary)
            heads, kinds = int(_extent_classes(columns)[-1]) + 1, int((classes.max(1).astype(np.int64) + 1).sum())
            symbols = max(vocabulary, columns + 1)
            if heads + kinds + 1 > MOST_TABLES:
                raise ValueError("classes")
            known = np.repeat([columns + 1, vocabulary], [heads, kinds])  # symbols of each table
            frequencies = _inflate(tables["frequencies"], (heads + kinds) * symbols, np.dtype("<u2"))
            frequencies = frequencies.reshape(-1, symbols)
            if ((frequencies > 0) != (np.arange(symbols) < known[:, None])).any():
                raise ValueError("frequencies")
            if (frequencies.sum(1, dtype=np.int64) != 1 << PRECISION).any():
                raise ValueError("sums")
        except (KeyError, IndexError, ValueError, TypeError, zlib.error) as error:
            raise DamageError("the stack tables of the store are malformed", "restore tables.safetensors") from error
        return RansStack(order, common, classes, np.concatenate([frequencies, _rest(symbols)]), length)

    def tables(self) -> dict[str, np.ndarray]:
        """Order and commonest codes of the kinds, classes of neighbours, and deflated frequencies."""
        return {
            "order": self.order.astype(np.uint16),
            "common": self.common.astype(np.uint16),
            "classes": _deflate(self.classes.astype(np.uint8)),
            "frequencies": self._packed,
        }

    @cached_property
    def _packed(self) -> np.ndarray:
        return _deflate(self.frequencies[:-1].astype("<u2"))

    def encode(self, ids: np.ndarray) -> tuple[bytes, np.ndarray]:
        """ids: (B, T). Returns the records and their sizes."""
        check_codes(ids, self.vocabulary)
        portion = max(1, TOGETHER // self.length)
        parts = [self._encode(ids[at : at + portion]) for at in range(0, len(ids), portion)]
        return b"".join(records for records, _ in parts), np.concatenate([sizes for _, sizes in parts] or [np.empty(0)])

    def _encode(self, ids: np.ndarray) -> tuple[bytes, np.ndarray]:
        stacks = ids.reshape(len(ids), -1, self.kinds)[:, :, self.order]  # (B, P, G)
        extents = _extents(stacks, self.common)  # (B, P)
        before = _before(extents[:, :, None], np.zeros(1, np.int64))
        neighbour = _before(stacks, self.common)
        table = self._first + self.classes[np.arange(self.kinds), neighbour]  # (B, P, G)
        symbol = np.concatenate([extents[:, :, None], stacks], 2).reshape(len(ids), -1)
        table = np.concatenate([_extent_classes(self.kinds)[before], table], 2).reshape(len(ids), -1)
        said = np.arange(self.kinds + 1) <= extents[:, :, None]  # the extent, and the codes within it
        image, position = said.reshape(len(ids), -1).nonzero()
        count = np.bincount(image, minlength=len(ids))
        at = np.arange(len(image)) - np.repeat(np.cumsum(count) - count, count)  # in the stream of the image
        entry = np.full((count.max(initial=0), len(ids)), self._ended * self.frequencies.shape[1])  # rest at the end
        entry[at, image] = table[image, position] * self.frequencies.shape[1] + symbol[image, position]
        return encode_lanes(self.frequencies.ravel()[entry], self.starts.ravel()[entry], PRECISION)

    @cached_property
    def _look(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The table of a symbol by what its kind was before; symbol of each slot; frequency and start of a symbol.

        The extent is the first kind here: one way of looking up for all.
        """
        symbols = self.frequencies.shape[1]
        heads, kinds = _extent_classes(self.kinds)[None], self._first[:, None] + self.classes
        tables = np.concatenate([np.pad(t, ((0, 0), (0, symbols - t.shape[1]))) for t in (heads, kinds)]).ravel()
        slots = np.tile(np.arange(symbols, dtype=np.int16), len(self.frequencies)).repeat(self.frequencies.ravel())
        return tables, slots, self.frequencies.ravel() | self.starts.ravel() << np.uint32(16)

    @cached_property
    def _tables(self) -> tuple[np.ndarray, np.ndarray]:
        """Of kernels: see `coarse_tables`."""
        return coarse_tables(self._look[1], self.starts, PRECISION)

    def decode(self, data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Returns (B, T) int32."""
        positions, high, symbols = self.length // self.kinds, self.kinds + 1, self.frequencies.shape[1]
        check_sizes(sizes, positions * high)
        tables, slots, pairs = self._look
        if fast := kernels(KERNELS, len(starts) * self.length):
            stacks = np.empty((len(starts), positions, self.kinds), np.int32)
            arguments = (tables.reshape(high, symbols), *self._tables, self.order, self.common, PRECISION)
            decode_compiled(fast.decode_stack, data, starts, sizes, arguments, stacks)
            return stacks.reshape(len(starts), self.length)
        lanes = LaneDecoder(data, starts, sizes, PRECISION, positions * high)
        out = np.tile(
            np.append(0, self.common).astype(np.int32), (len(starts), positions + 2, 1)
        )  # one more at each end
        flat = out.reshape(-1)
        position = (
            np.arange(len(starts)) * ((positions + 2) * high) + high
        )  # where the current position of each stream begins
        end = position + positions * high
        kind = np.zeros(len(starts), np.int64)  # that comes next; 0: the extent
        ended = position == end
        while not ended.all():
            here = position + kind
            table = tables.take(kind * symbols + flat.take(here - high))
            table[ended] = self._ended
            slot = lanes.slot()
            symbol = slots.take((table << PRECISION) + slot)
            pair = pairs.take(table * symbols + symbol)
            lanes.advance(pair & np.uint32(0xFFFF), slot - (pair >> np.uint32(16)))
            flat[here] = symbol
            more = kind < flat.take(position)
            kind = (kind + 1) * more
            position = np.minimum(position + high * ~more, end)
            ended = position == end
        lanes.finish()
        ids = np.empty((len(starts), positions, self.kinds), np.int32)
        ids[:, :, self.order] = out[:, 1:-1, 1:]
        return ids.reshape(len(starts), self.length)


def _extent_classes(kinds: int) -> np.ndarray:
    """Class of an extent for the one that follows: its number of binary digits. Returns (G + 1,)."""
    return np.ceil(np.log2(np.arange(kinds + 1) + 1)).astype(np.int64)


def _extents(stacks: np.ndarray, common: np.ndarray) -> np.ndarray:
    """How many leading kinds hold all uncommon codes. stacks: (B, P, G); returns (B, P)."""
    uncommon = stacks != common
    return np.where(uncommon.any(2), stacks.shape[2] - uncommon[:, :, ::-1].argmax(2), 0)


def _before(stacks: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The position before each; the first has `first` before it. stacks: (B, P, G)."""
    return np.concatenate([np.broadcast_to(first, (len(stacks), 1, len(first))), stacks[:, :-1]], 1)


def _splits(neighbour: np.ndarray, common: int, vocabulary: int, fine: bool) -> Iterator[np.ndarray]:
    """Ways to class codes: not at all, by how far they are from the common one, by quantiles. Each (K,)."""
    codes = np.arange(vocabulary)
    yield np.zeros(vocabulary, np.int64)
    yield np.minimum(np.abs(codes - common), 2)
    if fine and len(neighbour):
        yield np.searchsorted(np.unique(np.quantile(neighbour, np.arange(1, 16) / 16, method="lower")), codes)


def _counted(code: np.ndarray, neighbour: np.ndarray, split: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Bits of codes and of their tables, by classes of neighbours; the classes; counts, (classes, K)."""
    size = int(split.max()) + 1
    counts = np.bincount(split[neighbour] * len(split) + code, minlength=size * len(split)).reshape(size, len(split))
    p = quantise(counts, PRECISION) / (1 << PRECISION)
    return float(-(counts * np.log2(p)).sum() + 12 * (counts > 0).sum()), split, counts


def _rest(symbols: int) -> np.ndarray:
    """A table of one symbol, which leaves a stream as it is. Returns (1, A)."""
    rest = np.zeros((1, symbols), np.uint16)
    rest[0, 0] = 1 << PRECISION
    return rest


def _deflate(values: np.ndarray) -> np.ndarray:
    return np.frombuffer(zlib.compress(values.tobytes(), 6), np.uint8)


def _inflate(values: np.ndarray, count: int, dtype: np.dtype | type) -> np.ndarray:
    """Inflate exactly `count` numbers, or raise; never allocates more."""
    size = count * np.dtype(dtype).itemsize
    unpacker = zlib.decompressobj()
    raw = unpacker.decompress(values.astype(np.uint8, casting="equiv").tobytes(), size + 1)
    if len(raw) != size or not unpacker.eof:
        raise ValueError("sizes")
    return np.frombuffer(raw, dtype)


codecs.add("rans-stack")(RansStack)
