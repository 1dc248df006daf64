"""The paper's own coding (SeiT, algorithms 1 and 2): codes as small symbols with escapes, then gzip over all of them.

Generalised to any symbol width M and any vocabulary by repeating the escape. The published ImageNet files have M = 8
with escape 255 (the text says 2^M): code = 255 k + r becomes k times 255, then r. Kept to read the published files and
as the baseline of our codecs; it allows no random access.

B images | T tokens per image | S symbols in all
"""

from __future__ import annotations

import zlib

import numpy as np

from tilework.core.errors import DamageError, InputError

LARGEST = 1 << 34  # bytes that a file may unpack to


def escape(ids: np.ndarray, bits: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Algorithm 1. ids: (B, T); returns symbols (S,) and the first symbol of each image, (B + 1,) int64."""
    if ids.size and ids.min() < 0:
        raise InputError(f"code {ids.min()} is negative", "codes start at 0")
    top = (1 << bits) - 1
    times, rest = np.divmod(ids.astype(np.int64), top)  # escapes before each code, and what follows them
    last = np.cumsum(times.ravel() + 1)
    symbols = np.full(last[-1] if last.size else 0, top, np.min_scalar_type(top))
    symbols[last - 1] = rest.ravel()
    per_image = (times + 1).sum(1)
    return symbols, np.concatenate([[0], np.cumsum(per_image)])


def unescape(symbols: np.ndarray, offsets: np.ndarray, bits: int = 8) -> np.ndarray:
    """Algorithm 2. Returns (B, T) int64; every image must have as many codes as the first."""
    top = (1 << bits) - 1
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(symbols) or (np.diff(offsets) < 1).any():
        raise DamageError("the offsets do not fit the symbols", "restore the index file")
    ends = np.flatnonzero(symbols != top)
    if not len(ends) or ends[-1] != len(symbols) - 1:
        raise DamageError("the symbols end inside an escape", "restore the data file")
    codes = symbols[ends].astype(np.int64) + top * (np.diff(ends, prepend=-1) - 1)
    counts = np.diff(np.searchsorted(ends, offsets))
    if (symbols[offsets[1:] - 1] == top).any() or (counts != counts[0]).any():
        raise DamageError("an image ends inside an escape or has another number of codes", "restore the files")
    return codes.reshape(len(counts), -1)


def pack(symbols: np.ndarray, level: int = 9) -> bytes:
    """Symbols as one gzip file; the same bytes every time."""
    packer = zlib.compressobj(level, wbits=31)
    return packer.compress(symbols.tobytes()) + packer.flush()


def unpack(data: bytes, kind: str = "u1", largest: int = LARGEST) -> np.ndarray:
    """Symbols of a gzip file; refuses one that is damaged, or larger than allowed once unpacked."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        raw = unpacker.decompress(data, largest + 1)
    except zlib.error as error:
        raise DamageError("the data file is not a complete gzip file", f"restore it ({error})") from error
    if len(raw) > largest:
        raise DamageError(f"the data file unpacks to more than {largest} bytes", "raise the limit if that is right")
    if not unpacker.eof or len(raw) % np.dtype(kind).itemsize:
        raise DamageError("the gzip file is cut short", "restore it")
    return np.frombuffer(raw, kind)
