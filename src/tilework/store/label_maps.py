"""Label maps: the top classes of every location of an image and their scores, one small record for each image.

A record is a header (version, levels, k, bytes of a palette gap, h, w, P; little-endian) and one raw deflate stream of
palette: P gaps of the sorted class ids, the first from 0;
classes: for every location, in rows, its kept classes in the order of the palette: gaps of their positions in it, the
         first from -1, then 0 for each dropped entry; all low bytes, then (only if P > 255) all high bytes;
scores:  one byte for each kept entry, in the order of the classes: the score in steps of 1 / levels.
A score comes back within 1 / (2 levels) of itself, 1/126 unless told otherwise; what rounds to 0 is dropped. Scores are
probabilities among all classes of the annotator: what they leave of 1 belongs to none of the kept (version 1, refused,
had scores among the classes of the data alone). Classes repeat among neighbours, scores do not: they are deflate blocks
of their own, without matches (saves 4 to 6 %).

B images | h, w locations | k classes named per location | n = h w k entries | P distinct classes of an image
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np

from tilework.core.errors import DamageError, InputError

HEADER = struct.Struct("<BBBBHHH")  # version, levels, k, bytes of a palette gap, h, w, P
VERSION = 2
GAPS = {size: np.dtype(f"<u{size}") for size in (1, 2, 4)}  # of a palette, by bytes
LEVELS = 63
LARGEST_SIDE = 4096
LARGEST_TOP = 255  # classes per location
LARGEST_ENTRIES = 1 << 22  # of a record
LARGEST_ID = (1 << 31) - 1
LARGEST_PALETTE = (1 << 16) - 1
DEFLATE_RATIO = 1032  # no stream unpacks to more bytes than this many times its own
TOGETHER = 64  # records decoded at once: their arrays stay in the cache


def encode_map(ids: np.ndarray, scores: np.ndarray, levels: int = LEVELS) -> bytes:
    """One record. ids: (h, w, k) integers; scores: (h, w, k) in 0..1, kept to within 1 / (2 levels)."""
    _check_map(ids, scores, levels)
    steps = np.rint(scores.astype(np.float64) * levels).astype(np.uint8)  # (h, w, k)
    keep = steps > 0
    palette, inverse = np.unique(ids[keep], return_inverse=True)  # (P,), (kept,)
    if len(palette) > LARGEST_PALETTE:
        raise InputError(f"a label map names {len(palette)} classes", f"at most {LARGEST_PALETTE} fit")
    last = len(palette)  # behind every class: where the dropped ones go
    position = np.full(ids.shape, last, np.int64)
    position[keep] = inverse.ravel()
    order = np.argsort(position, axis=-1, kind="stable")
    position, steps = np.take_along_axis(position, order, -1), np.take_along_axis(steps, order, -1)
    gaps = np.diff(position, axis=-1, prepend=-1)
    gaps[position == last] = 0
    if ((gaps == 0) & (steps > 0)).any():
        raise InputError("a label map names a class twice at one location", "add up its scores")
    steps_up = np.diff(palette.astype(np.int64), prepend=0)
    width = next(w for w in GAPS if steps_up.max(initial=0) < 1 << 8 * w)
    classes = steps_up.astype(GAPS[width]).tobytes() + (gaps & 255).astype(np.uint8).tobytes()
    if last > 255:
        classes += (gaps >> 8).astype(np.uint8).tobytes()
    matched = zlib.compressobj(9, zlib.DEFLATED, -15, 9)
    counted = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    body = matched.compress(classes) + matched.flush(zlib.Z_FULL_FLUSH)  # the stream goes on in a block of its own
    body += counted.compress(steps[steps > 0].tobytes()) + counted.flush()
    height, columns, top = ids.shape
    return HEADER.pack(VERSION, levels, top, width, height, columns, last) + body


def _check_map(ids: np.ndarray, scores: np.ndarray, levels: int) -> None:
    """Raise for values that a record cannot hold."""
    if ids.ndim != 3 or ids.shape != scores.shape or ids.dtype.kind not in "iu" or scores.dtype.kind != "f":
        raise InputError(f"a label map of {ids.dtype}{ids.shape} and {scores.dtype}{scores.shape}", "give (h, w, k)")
    if not _fits(*ids.shape):
        raise InputError(f"a label map of {ids.shape}", f"sides are 1..{LARGEST_SIDE}, classes 1..{LARGEST_TOP}")
    if ids.min() < 0 or ids.max() > LARGEST_ID:
        raise InputError(f"class ids {ids.min()}..{ids.max()} in a label map", f"0..{LARGEST_ID} are allowed")
    if not ((scores >= 0) & (scores <= 1)).all():
        raise InputError("a score of a label map is outside 0..1", "give probabilities")
    if not 1 <= levels <= 255:
        raise InputError(f"label maps cannot have {levels} score levels", "use 1..255")


def _fits(height: int, width: int, top: int) -> bool:
    sides = 1 <= height <= LARGEST_SIDE and 1 <= width <= LARGEST_SIDE and 1 <= top <= LARGEST_TOP
    return sides and height * width * top <= LARGEST_ENTRIES


def decode_maps(records: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Records of one form. Returns ids (B, h, w, k) int32 and scores (B, h, w, k) float32, descending along k.

    A dropped entry has score 0 and the id of some class.
    """
    if not records:
        raise InputError("no label maps to decode", "give at least one record")
    form = _form(records[0])
    if any(_form(record) != form for record in records):
        raise DamageError("label maps of one batch differ in form", "restore the column, or decode them one by one")
    ids = np.empty((len(records), *form), np.int32)
    scores = np.empty((len(records), *form), np.float32)
    for i in range(0, len(records), TOGETHER):
        some = slice(i, i + TOGETHER)
        _decode(records[some], ids[some], scores[some])
    return ids, scores


def _decode(records: Sequence[bytes], ids: np.ndarray, shares: np.ndarray) -> None:
    """Fill ids and shares, (B, h, w, k), from records whose headers are sound."""
    entries, top = ids[0].size, ids.shape[-1]
    levels = np.array([[record[1]] for record in records], np.float32)  # (B, 1)
    palettes, low, high, scores = [], [], {}, []
    for i, record in enumerate(records):
        _, _, _, size, _, _, last = HEADER.unpack_from(record)
        at = last * size
        end = at + entries * (2 if last > 255 else 1)
        body = _inflate(record, end, end + entries)
        palettes.append(np.frombuffer(body, GAPS[size], last) if last else np.zeros(1, np.uint8))
        low.append(body[at : at + entries])
        if last > 255:
            high[i] = np.frombuffer(body, np.uint8, entries, at + entries)
        scores.append(body[end:])
    gaps = np.frombuffer(b"".join(low), np.uint8).reshape(len(records), entries)
    if high:
        gaps = gaps.astype(np.uint16)
        for i, plane in high.items():
            gaps[i] |= plane.astype(np.uint16) << 8
    names, steps = _name(gaps, _scatter(scores, gaps > 0, levels), palettes, top)
    ids.reshape(gaps.shape)[:] = names
    np.divide(steps, levels, out=shares.reshape(gaps.shape), dtype=np.float32)


def _form(record: bytes, what: str = "a label map") -> tuple[int, int, int]:
    """h, w, k of a record whose header is sound."""
    if len(record) < HEADER.size:
        raise DamageError(f"a label map is cut short ({len(record)} bytes)", "restore the column")
    version, levels, top, gap, height, width, _ = HEADER.unpack_from(record)
    if version != VERSION:
        raise other_version(what, version)
    if not levels or gap not in GAPS or not _fits(height, width, top):
        raise DamageError("the header of a label map is malformed", "restore the column")
    if height * width * top > DEFLATE_RATIO * len(record):
        raise DamageError("a label map is too short for its form", "restore the column")
    return height, width, top


def check_version(record: bytes, what: str) -> None:
    """Refuse a record of another version, whose scores mean something else. what: that holds it."""
    _form(record, what)


def other_version(what: str, version: int) -> DamageError:
    """Error for label maps of another version."""
    hint = "annotate again ('tilework annotate IMAGES --out MAPS')" if version < VERSION else "update Tilework"
    return DamageError(f"{what} has version {version} of label maps, this software reads {VERSION}", hint)


def _inflate(record: bytes, least: int, most: int) -> bytes:
    """The body of a record, of `least` to `most` bytes."""
    unpacker = zlib.decompressobj(-15)
    try:
        body = unpacker.decompress(record[HEADER.size :], most + 1)
    except zlib.error as error:
        raise DamageError("a label map is damaged", f"restore the column ({error})") from error
    if not unpacker.eof or unpacker.unused_data or not least <= len(body) <= most:
        raise DamageError("a label map does not unpack to the size of its form", "restore the column")
    return body


def _scatter(scores: list[bytes], keep: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Scores where classes are kept, (B, n) uint8. keep: (B, n); levels: (B, 1)."""
    if [len(one) for one in scores] != np.count_nonzero(keep, axis=1).tolist():
        raise DamageError("a label map has more or fewer scores than classes", "restore the column")
    steps = np.zeros(keep.shape, np.uint8)
    steps.reshape(-1)[np.flatnonzero(keep)] = np.frombuffer(b"".join(scores), np.uint8)
    if np.count_nonzero(steps) != np.count_nonzero(keep) or (steps.max(axis=1, keepdims=True) > levels).any():
        raise DamageError("a score of a label map is out of range", "restore the column")
    return steps


def _name(gaps: np.ndarray, steps: np.ndarray, palettes: list[np.ndarray], top: int) -> tuple[np.ndarray, np.ndarray]:
    """Class ids and scores, (B, n) each, sorted within locations. gaps, steps: (B, n)."""
    sizes = np.array([len(palette) for palette in palettes])
    ends = np.cumsum(sizes)
    total = np.cumsum(np.concatenate(palettes), dtype=np.int64)  # of all palettes, one after another
    ids = total - np.repeat(np.concatenate([[0], total[ends[:-1] - 1]]), sizes)
    if ids.max() > LARGEST_ID:
        raise DamageError(f"a label map names class {ids.max()}", "restore the column")
    bits = 8 if gaps.dtype == np.uint8 else 16  # of a position; small keys sort faster
    keys: np.ndarray = np.ascontiguousarray(gaps.reshape(-1, top).T).astype(f"u{bits // 4}")  # (k, B h w)
    for i in range(1, top):  # as cumsum, eight times faster; 255 gaps fit twice their bits
        keys[i] += keys[i - 1]  # position in the palette, counted from 1
    if (keys[-1].reshape(len(gaps), -1).max(axis=1) > sizes).any():
        raise DamageError("a label map names a class outside its palette", "restore the column")
    keys |= (255 - steps.reshape(-1, top).T).astype(keys.dtype) << bits
    _sort(keys)  # scores descend, positions ascend
    keys = np.ascontiguousarray(keys.T).reshape(len(gaps), -1)  # (B, n)
    position = np.maximum(keys & ((1 << bits) - 1), 1) + (ends - sizes - 1)[:, None]
    return ids.astype(np.int32).take(position), 255 - (keys >> bits)


def _sort(keys: np.ndarray) -> None:
    """Sort columns in place, by odd-even transposition where they are short: whole rows at once. keys: (k, any)."""
    top = len(keys)
    if top > 16:
        keys.sort(axis=0)
        return
    for turn in range(top):
        for i in range(turn % 2, top - 1, 2):
            smaller = np.minimum(keys[i], keys[i + 1])
            np.maximum(keys[i], keys[i + 1], out=keys[i + 1])
            keys[i] = smaller
