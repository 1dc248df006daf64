"""Class masks without loss, about two fifths of their PNG files: coarse to fine, each pixel told by four around it.

A grid of every 32nd pixel comes first; then, halving the step, the middle of every square, told by its four corners,
and the middles of the sides, told by the four pixels left, right, above and below. Where the four agree, so does nearly
every pixel: exceptions are listed by their distance from each other. Elsewhere the pixel is a rank among its
neighbours, the most frequent first, coded by range asymmetric numeral systems with counts that both sides learn on the
way. Everything of a step is worked on at once; only the ranks that are not certain are decoded one after another.

A record, little-endian: header (version, h, w, P classes, E exceptions, X explicit classes, bytes of the stream); one
raw deflate stream of the palette, the coarse grid, numbers of words of the LANES lanes, gaps between exceptions (both 7
bits a byte, low ones first, the high bit says that more follow) and explicit classes as places in the palette; then the
lanes.

h, w pixels | P distinct classes | n pixels of a pass | m those whose neighbours differ | T steps of the lanes
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tilework.core.errors import DamageError, InputError
from tilework.store.lanes import LaneDecoder, encode_lanes, quantise, starts_of

HEADER = struct.Struct("<BHHHIII")  # version, h, w, P, exceptions, explicit classes, bytes of the deflate stream
VERSION = 1
STEP = 32  # of the coarse grid
LANES = 16
PRECISION = 12  # bits of a table's sum
RANKS = 5  # of a pixel among its neighbours; the last: none of them
CONTEXTS = 256  # which neighbours are equal (6 bits), corners or sides, last step or an earlier one
TOGETHER = 2048  # ranks between two looks at the counts
PRIOR = (16, 8, 2, 1, 1)
LARGEST_SIDE = 1 << 14
LARGEST_PIXELS = 1 << 24
PAIRS = tuple((i, j) for i in range(4) for j in range(i))
FLAT = (1 << len(PAIRS)) - 1  # all four are equal


class Pass(NamedTuple):
    """Pixels that are told at once, as flat positions."""

    at: np.ndarray  # (n,)
    around: np.ndarray  # (4, n)
    context: int


def encode_mask(mask: np.ndarray) -> bytes:
    """One record. mask: (h, w) uint8."""
    if mask.ndim != 2 or mask.dtype != np.uint8 or not _fits(*mask.shape):
        sides = f"sides up to {LARGEST_SIDE}, {LARGEST_PIXELS} pixels in all"
        raise InputError(f"a mask of {mask.dtype}{mask.shape}", f"give (h, w) of bytes, {sides}")
    palette, places = np.unique(mask, return_inverse=True)
    x = places.astype(np.uint8).reshape(-1)  # (h w,)
    counts = _fresh_counts()
    gaps, explicit, steps = [], [], []
    offset, last = 0, -1
    for step in _passes(*mask.shape):
        true, near = x[step.at], x[step.around]
        pattern = _pattern(near)
        flat = pattern == FLAT
        strange = np.flatnonzero(true[flat] != near[0, flat])
        gaps.append(np.diff(strange + offset, prepend=last) - 1)
        last = int(strange[-1]) + offset if len(strange) else last
        offset += int(flat.sum())
        explicit.append(true[flat][strange])
        named, context = _ranked(near[:, ~flat]), pattern[~flat] + step.context
        left = true[~flat]
        rank = np.where((named == left).any(0), (named == left).argmax(0), RANKS - 1)  # (m,)
        explicit.append(left[rank == RANKS - 1])
        for part in _parts(len(rank)):
            frequency = quantise(counts, PRECISION)
            start = starts_of(frequency)
            pairs = (context[part], rank[part])
            steps.append((_lanes(frequency[pairs], 1 << PRECISION), _lanes(start[pairs], 0)))
            np.add.at(counts, pairs, 2)
    told = np.concatenate([*explicit, x[:0]])
    exceptions = np.concatenate([*gaps, np.empty(0, np.int64)])
    coarse = x.reshape(mask.shape)[::STEP, ::STEP]
    none = np.empty((0, LANES), np.uint32)
    frequencies, starts = (np.concatenate([none, *(step[i] for step in steps)]) for i in (0, 1))
    lanes, sizes = encode_lanes(frequencies, starts, PRECISION)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15, 9)
    body = palette.tobytes() + coarse.tobytes() + _pack(sizes // 2) + _pack(exceptions) + told.tobytes()
    stream = packer.compress(body) + packer.flush()
    head = HEADER.pack(VERSION, *mask.shape, len(palette), len(exceptions), len(told), len(stream))
    return head + stream + lanes


def decode_mask(record: bytes) -> np.ndarray:
    """The mask of a record, (h, w) uint8."""
    height, width, palette, coarse, exceptions, told, lanes = _open(record)
    grid = np.zeros((height, width), np.uint8)
    grid[::STEP, ::STEP] = coarse
    x = grid.reshape(-1)
    counts = _fresh_counts()
    offset, seen, used = 0, 0, 0
    for step in _passes(height, width):
        near = x[step.around]
        pattern = _pattern(near)
        flat = pattern == FLAT
        new = near[0].copy()
        total = int(flat.sum())
        upto = int(np.searchsorted(exceptions, offset + total))
        strange = np.flatnonzero(flat)[exceptions[seen:upto] - offset]
        new[strange] = _take(told, used, len(strange))
        offset, seen, used = offset + total, upto, used + len(strange)
        named, context = _ranked(near[:, ~flat]), pattern[~flat] + step.context
        rank = np.empty(len(context), np.int64)
        for part in _parts(len(rank)):
            rank[part] = _decode_ranks(lanes, quantise(counts, PRECISION), context[part])
            np.add.at(counts, (context[part], rank[part]), 2)
        values = np.take_along_axis(named, np.minimum(rank, 3)[None], 0)[0]
        escaped = rank == RANKS - 1
        more = int(escaped.sum())
        values[escaped] = _take(told, used, more)
        used += more
        new[~flat] = values
        x[step.at] = new
    lanes.finish()
    if seen != len(exceptions) or used != len(told):
        raise DamageError("a mask has more exceptions than pixels", "restore the column")
    return palette[x].reshape(height, width)


def mask_size(record: bytes) -> tuple[int, int]:
    """Height and width of a record, its header checked."""
    if len(record) < HEADER.size + 4 * LANES:  # states alone are as long
        raise DamageError(f"a mask is cut short ({len(record)} bytes)", "restore the column")
    version, height, width, classes = HEADER.unpack_from(record)[:4]
    if version != VERSION:
        raise DamageError(f"a mask of version {version}, this software reads {VERSION}", "update Tilework")
    if not _fits(height, width) or not 1 <= classes <= 256:
        raise DamageError("the header of a mask is malformed", "restore the column")
    return height, width


def _fits(height: int, width: int) -> bool:
    return 1 <= height <= LARGEST_SIDE and 1 <= width <= LARGEST_SIDE and height * width <= LARGEST_PIXELS


def _fresh_counts() -> np.ndarray:
    return np.tile(np.array(PRIOR, np.int64), (CONTEXTS, 1))


@lru_cache(maxsize=2)  # masks of a data set often have one size
def _passes(height: int, width: int) -> tuple[Pass, ...]:
    return tuple(_make_passes(height, width))


def _make_passes(height: int, width: int) -> Iterator[Pass]:
    """From the coarse grid to every pixel: middles of squares, then those of horizontal and of vertical sides."""
    step = STEP
    while step > 1:
        half = step // 2
        late = 128 * (step == 2)
        corners = ((-half, -half), (-half, half), (half, -half), (half, half))
        across = ((0, -half), (0, half), (-half, 0), (half, 0))
        down = ((-half, 0), (half, 0), (0, -half), (0, half))
        for top, left, around, kind in ((half, half, corners, 0), (0, half, across, 64), (half, 0, down, 64)):
            rows, columns = np.meshgrid(np.arange(top, height, step), np.arange(left, width, step), indexing="ij")
            r, c = rows.reshape(-1), columns.reshape(-1)
            first = (r + around[0][0]) * width + c + around[0][1]  # always inside
            near = [_inside(r, c, by, (height, width), first) for by in around]
            yield Pass((r * width + c).astype(np.int32), np.stack(near).astype(np.int32), kind + late)
        step = half


def _inside(r: np.ndarray, c: np.ndarray, by: tuple[int, int], sides: tuple[int, int], first: np.ndarray) -> np.ndarray:
    """Flat positions of a neighbour; the opposite one where it is outside, and the first where that is, too."""
    rows, columns = r + by[0], c + by[1]
    rows = np.where((rows < 0) | (rows >= sides[0]), r - by[0], rows)
    columns = np.where((columns < 0) | (columns >= sides[1]), c - by[1], columns)
    out = (rows < 0) | (rows >= sides[0]) | (columns < 0) | (columns >= sides[1])
    return np.where(out, first, rows * sides[1] + columns)


def _pattern(near: np.ndarray) -> np.ndarray:
    """Which of the neighbours are equal, a bit for each pair. near: (4, n)."""
    pattern = np.zeros(near.shape[1], np.int64)
    for bit, (i, j) in enumerate(PAIRS):
        pattern |= (near[i] == near[j]).astype(np.int64) << bit
    return pattern


def _ranked(near: np.ndarray) -> np.ndarray:
    """The neighbours, those whose class is frequent among them first. near: (4, m)."""
    votes = (near[:, None] == near[None]).sum(1)  # (4, m)
    order = np.argsort(-votes, axis=0, kind="stable")
    return np.take_along_axis(near, order, 0)


def _parts(count: int) -> Iterator[slice]:
    return (slice(i, min(i + TOGETHER, count)) for i in range(0, count, TOGETHER))


def _lanes(values: np.ndarray, fill: int) -> np.ndarray:
    """Values dealt out to the lanes, (T, LANES) uint32; what fills the last row costs nothing."""
    rows = -(-len(values) // LANES)
    out = np.full(rows * LANES, fill, np.uint32)
    out[: len(values)] = values
    return out.reshape(rows, LANES)


def _decode_ranks(lanes: LaneDecoder, frequency: np.ndarray, context: np.ndarray) -> np.ndarray:
    """Ranks of some pixels in order. frequency: (CONTEXTS, RANKS); context: (m,)."""
    count = len(context)
    rows = -(-count // LANES)
    certain = np.array([1 << PRECISION, *[0] * (RANKS - 1)], np.uint32)  # for what fills the last row
    tables = np.concatenate([frequency, certain[None]])
    starts = starts_of(tables)
    padded = np.full(rows * LANES, CONTEXTS)
    padded[:count] = context
    rank = np.empty((rows, LANES), np.int64)
    lane = np.arange(LANES)
    bounds = starts[padded].reshape(rows, LANES, RANKS)
    sizes = tables[padded].reshape(rows, LANES, RANKS)
    for row in range(rows):
        slot = lanes.slot()
        bound = bounds[row]
        found = (slot[:, None] >= bound[:, 1:]).sum(1)
        found[sizes[row, lane, found] == 0] = 0  # fillers have one symbol
        lanes.advance(sizes[row, lane, found], slot - bound[lane, found])
        rank[row] = found
    return rank.reshape(-1)[:count]


def _take(told: np.ndarray, at: int, count: int) -> np.ndarray:
    if at + count > len(told):
        raise DamageError("a mask has fewer classes than exceptions", "restore the column")
    return told[at : at + count]


def _pack(numbers: np.ndarray) -> bytes:
    out = bytearray()
    for number in numbers.tolist():
        while number > 127:
            out.append(number & 127 | 128)
            number >>= 7
        out.append(number)
    return bytes(out)


def _unpack(body: bytes, at: int, count: int) -> tuple[np.ndarray, int]:
    """So many numbers and where they end; a number has at most four bytes."""
    numbers: list[int] = []
    value, shift = 0, 0
    while len(numbers) < count:
        if at >= len(body) or shift > 21:
            raise DamageError("the numbers of a mask are damaged", "restore the column")
        value |= (body[at] & 127) << shift
        shift += 7
        if body[at] < 128:
            numbers.append(value)
            value, shift = 0, 0
        at += 1
    return np.array(numbers, np.int64), at


def _open(record: bytes) -> tuple[int, int, np.ndarray, np.ndarray, np.ndarray, np.ndarray, LaneDecoder]:
    """Size, palette, coarse grid, positions of exceptions among pixels that look certain, explicit classes, lanes."""
    height, width = mask_size(record)
    _, _, _, classes, strange, explicit, length = HEADER.unpack_from(record)
    if HEADER.size + length > len(record) or max(strange, explicit) > height * width:
        raise DamageError("a mask has another length than its header says", "restore the column")
    rows, columns = -(-height // STEP), -(-width // STEP)
    most = classes + rows * columns + 4 * (LANES + strange) + explicit
    unpacker = zlib.decompressobj(-15)
    try:
        body = unpacker.decompress(record[HEADER.size : HEADER.size + length], most + 1)
    except zlib.error as error:
        raise DamageError("a mask is damaged", f"restore the column ({error})") from error
    if not unpacker.eof or len(body) > most or len(body) < classes + rows * columns:
        raise DamageError("a mask does not unpack to the size of its form", "restore the column")
    palette = np.frombuffer(body, np.uint8, classes)
    coarse = np.frombuffer(body, np.uint8, rows * columns, classes).reshape(rows, columns)
    words, at = _unpack(body, classes + rows * columns, LANES)
    gaps, at = _unpack(body, at, strange)
    told = np.frombuffer(body, np.uint8, -1, at)
    if len(told) != explicit or coarse.max() >= classes or told.max(initial=0) >= classes:
        raise DamageError("a mask names a class outside its palette", "restore the column")
    exceptions = np.cumsum(gaps + 1) - 1
    data = np.frombuffer(record, np.uint8, -1, HEADER.size + length)
    if 2 * int(words.sum()) != len(data):
        raise DamageError("a mask has another length than its header says", "restore the column")
    starts = np.cumsum(2 * words) - 2 * words
    most_steps = height * width // LANES + height * width // TOGETHER + 64  # some rows of every pass are not full
    decoder = LaneDecoder(data, starts, 2 * words, PRECISION, most_steps)
    return height, width, palette, coarse, exceptions, told, decoder
