"""The files that SeiT's authors published, read and written: escaped codes under gzip, offsets, labels, codebook.

NAME-token.data.bin.gz      bytes, codes of 255 and more after escapes (store/escape_gzip.py)
NAME-token.index.npy.gz     where each image starts, and the end: (N + 1,) int64
NAME-label.txt              one integer per line
codebook.ckpt               torch tensor, (K, C)
synonyms.json               {"code": [codes, nearest first]}; may be missing; SeiT++ calls it codebook-synonyms.json

Checked against files made by the algorithms of the paper's appendix; the published files themselves were not at hand.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from tilework.core.codebook import are_synonyms
from tilework.core.errors import DamageError, InputError
from tilework.core.files import new_directory, read_plain
from tilework.core.torch_files import read_torch
from tilework.data.labels import number_labels
from tilework.data.npy_files import parse_npy
from tilework.store import Store, StoreWriter
from tilework.store.escape_gzip import escape, pack, unescape, unpack

TOGETHER = 4096
SYNONYMS = ("synonyms.json", "codebook-synonyms.json")  # SeiT's name of the file, and SeiT++'s
FREE = 1 << 26  # bytes that any file may unpack to
MOST_TIMES = 64  # as much as packed, for larger ones


def find_names(folder: Path) -> list[str]:
    """Data sets in a folder of such files."""
    return sorted(path.name.removesuffix("-token.data.bin.gz") for path in folder.glob("*-token.data.bin.gz"))


def read_seit(
    folder: Path,
    out: Path,
    grid: tuple[int, int],
    name: str = "",
    codec: str = "auto",
    licence: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """A store of the published files; images are named by their number."""
    names = find_names(folder)
    if (name and name not in names) or (not name and len(names) != 1):
        raise InputError(f"{folder} holds {', '.join(names) or 'no *-token.data.bin.gz'}", "choose one with --name")
    name = name or names[0]
    codebook = _codebook(folder / "codebook.ckpt")
    synonyms = _synonyms(next((p for p in (folder / n for n in SYNONYMS) if p.exists()), None), len(codebook))
    symbols = _unpack(folder / f"{name}-token.data.bin.gz")
    offsets = _offsets(folder / f"{name}-token.index.npy.gz")
    labels, classes = _labels(folder / f"{name}-label.txt", len(offsets) - 1)
    width = len(str(len(labels)))
    with StoreWriter(out, codebook, classes, codec, licence=licence, synonyms=synonyms) as writer:
        for start in range(0, len(labels), TOGETHER):
            cut = offsets[start : start + TOGETHER + 1]
            ids = unescape(symbols[cut[0] : cut[-1]], cut - cut[0])
            if min(grid) < 1 or ids.shape[1] != grid[0] * grid[1]:
                raise InputError(f"images of {ids.shape[1]} codes for a grid of {grid[0]}x{grid[1]}", "change --grid")
            numbers = range(start, start + len(ids))
            writer.add(ids.reshape(-1, *grid), labels[start : start + len(ids)], [f"{i:0{width}d}" for i in numbers])
            progress(start + len(ids), len(labels))


def write_seit(
    store: Store, folder: Path, name: str, progress: Callable[[int, int], None] = lambda done, total: None
) -> None:
    """The published files of a store: codes by the store's numbers, with its codebook."""
    if store.views > 1:
        raise InputError(f"{store.path} has {store.views} views of each image", "these files hold one")
    if len(store.grid) > 2:
        raise InputError(
            f"{store.path} has {store.grid[2]} codes at a position, these files hold one", "use --to parquet"
        )
    parts, ends = [], [np.zeros(1, np.int64)]
    for start in range(0, len(store), TOGETHER):
        ids = store.batch(np.arange(start, min(start + TOGETHER, len(store))))
        symbols, offsets = escape(ids.reshape(len(ids), -1))
        parts.append(symbols)
        ends.append(offsets[1:] + ends[-1][-1])
        progress(start + len(ids), len(store))
    index = io.BytesIO()
    np.save(index, np.concatenate(ends).astype(np.int64), allow_pickle=False)
    with new_directory(folder) as root:
        (root / f"{name}-token.data.bin.gz").write_bytes(pack(np.concatenate(parts)))
        (root / f"{name}-token.index.npy.gz").write_bytes(gzip.compress(index.getvalue(), mtime=0))
        (root / f"{name}-label.txt").write_text("".join(f"{label}\n" for label in store.column("label").tolist()))
        torch.save(torch.from_numpy(store.codebook.vectors.copy()), root / "codebook.ckpt")
        book = store.codebook
        near = book.nearest() if book.synonyms is None else book.synonyms
        (root / "synonyms.json").write_text(json.dumps({str(code): row for code, row in enumerate(near.tolist())}))


def _bytes(path: Path) -> bytes:
    try:
        return read_plain(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read", str(error)) from error


def _unpack(path: Path) -> np.ndarray:
    """Contents of a gzip file; a large one that shrinks more than codes do is a trap for memory."""
    data = _bytes(path)
    try:
        return unpack(data, largest=max(FREE, MOST_TIMES * len(data)))
    except DamageError as error:
        raise DamageError(f"{path}: {error.what}", error.hint) from error


def _offsets(path: Path) -> np.ndarray:
    try:
        offsets = parse_npy(_unpack(path).tobytes())
    except ValueError as error:
        raise DamageError(f"{path} is not a numpy array", f"restore it ({error})") from error
    if offsets.ndim != 1 or len(offsets) < 2 or offsets.dtype.kind not in "iu" or offsets.min() < 0:
        raise DamageError(f"{path} holds no offsets", f"an array of {offsets.dtype} with shape {offsets.shape}")
    return offsets.astype(np.int64)


def _labels(path: Path, count: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """Class number of each image, (N,) int64, and the classes."""
    try:
        found = [int(line) for line in _bytes(path).split()]
    except ValueError as error:
        raise InputError(f"{path} holds something else than integers", str(error)) from error
    if len(found) != count:
        raise InputError(f"{path} has {len(found)} labels for {count} images", "one number from 0 each is needed")
    return number_labels(str(path), found)


def _codebook(path: Path) -> np.ndarray:
    found = read_torch(path)
    tensors = [found] if isinstance(found, torch.Tensor) else list(found.values()) if isinstance(found, dict) else []
    tables = [t for t in tensors if isinstance(t, torch.Tensor) and t.ndim == 2]
    if len(tables) != 1:
        raise InputError(f"{path} does not hold one (K, C) table", f"it holds {len(tables)}")
    (table,) = tables
    try:
        if table.is_complex():
            raise TypeError("complex numbers")
        wide = table if table.dtype == torch.float64 else table.float()  # a spool refuses what float32 cannot hold
        return wide.numpy(force=True)
    except (RuntimeError, TypeError) as error:  # sparse, quantised, or without values
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} holds no plain table", f"save it as a tensor of real numbers ({reason})") from error


def _synonyms(path: Path | None, codes: int) -> np.ndarray | None:
    """Other codes of each code, (K, n) int32, as many as every code has; None without the file."""
    if path is None:
        return None
    try:
        found = {int(code): [int(one) for one in near] for code, near in json.loads(_bytes(path)).items()}
        rows = [[one for one in found[code] if one != code] for code in range(codes)]
        least = min(map(len, rows))
        table = np.array([row[:least] for row in rows], np.int32)
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError) as error:
        raise InputError(f"{path} does not name synonyms of all {codes} codes", f"remove it ({error})") from error
    if len(found) != codes or not are_synonyms(table, codes):
        raise InputError(f"{path} does not fit a codebook of {codes} codes", "remove it, or take the right one")
    return table
