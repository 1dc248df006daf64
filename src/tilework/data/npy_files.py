"""Plain numpy arrays of codes, read and written.

N images | V views | H, W code grid | T codes of a sequence | K codes | C code dim | n synonyms of a code
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from tilework.core.codebook import are_synonyms
from tilework.core.errors import InputError
from tilework.core.files import new_directory, open_plain
from tilework.data.labels import MOST_CLASSES, UNLABELLED
from tilework.store import Store, StoreWriter
from tilework.store.spool import LARGEST_VOCABULARY

TOGETHER = 4096
SYNONYMS = "synonyms.npy"


def read_npy(
    path: Path,
    out: Path,
    codebook: Path | None = None,
    labels: Path | None = None,
    grid: tuple[int, int] | None = None,
    codec: str = "auto",
    licence: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """A store of an array of codes, (N, H, W) or (N, T); without a codebook it has no code vectors.

    synonyms.npy beside the codebook, (K, n), names other codes of each, the nearest first.
    """
    ids = load_npy(path)
    if ids.ndim not in (2, 3) or not ids.size or ids.dtype.kind not in "iu":
        raise InputError(f"{path} holds {ids.dtype} of shape {ids.shape}", "(N, H, W) or (N, T) integers are needed")
    if grid is not None:
        if min(grid) < 1 or ids[0].size != grid[0] * grid[1]:
            raise InputError(f"{ids[0].size} codes for a grid of {grid[0]}x{grid[1]}", "change --grid")
        ids = ids.reshape(-1, *grid)
    highest = int(ids.max()) if codebook is None else 0
    if not 0 <= highest < LARGEST_VOCABULARY:
        raise InputError(f"a code of {highest} in {path}", f"codes from 0 to {LARGEST_VOCABULARY - 1} can be stored")
    table = np.zeros((highest + 1, 0), np.float32) if codebook is None else load_table(codebook)
    numbers = np.zeros(len(ids), np.int64) if labels is None else load_npy(labels)
    if numbers.shape != (len(ids),) or numbers.dtype.kind not in "iu" or numbers.min() < 0:
        raise InputError(f"{labels} holds {numbers.dtype} of shape {numbers.shape}", f"{len(ids)} labels are needed")
    if numbers.max() >= MOST_CLASSES:
        what = f"labels {numbers.min()}..{numbers.max()} in {labels}"
        raise InputError(what, f"numbers from 0 to {MOST_CLASSES - 1} are needed")
    classes = [UNLABELLED] if labels is None else [str(i) for i in range(int(numbers.max()) + 1)]
    width = len(str(len(ids)))
    synonyms = None if codebook is None else _synonyms(codebook.with_name(SYNONYMS), len(table))
    with StoreWriter(out, table, classes, codec, licence=licence, synonyms=synonyms) as writer:
        for start in range(0, len(ids), TOGETHER):
            part = np.asarray(ids[start : start + TOGETHER])
            keys = [f"{i:0{width}d}" for i in range(start, start + len(part))]
            writer.add(part, numbers[start : start + len(part)], keys)
            progress(start + len(part), len(ids))


def write_npy(store: Store, folder: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
    """codes.npy, (N, H, W) or (N, V, H, W), by the store's numbers; codebook.npy, used.npy, labels.npy, keys.txt.

    And synonyms.npy, (K, n), where the store has some of its own.
    """
    shape = (store.views, *store.grid) if store.views > 1 else store.grid
    dtype = np.min_scalar_type(store.vocabulary - 1)
    with new_directory(folder) as root:
        codes = np.lib.format.open_memmap(root / "codes.npy", "w+", dtype, (len(store), *shape))
        for start in range(0, len(store), store.together):
            index = np.arange(start, min(start + store.together, len(store)))
            views = [store.batch(index, view) for view in range(store.views)]
            codes[index] = np.stack(views, 1).reshape(len(index), *shape)
            progress(start + len(index), len(store))
        codes.flush()
        for name, values in (
            ("codebook", store.codebook.vectors),
            ("used", store.used),
            ("labels", store.column("label")),
        ):
            np.save(root / f"{name}.npy", values, allow_pickle=False)
        if store.codebook.synonyms is not None:
            np.save(root / SYNONYMS, store.codebook.synonyms, allow_pickle=False)
        (root / "keys.txt").write_text("".join(f"{key}\n" for key in store.column("key")), "utf-8", "surrogateescape")


def _synonyms(path: Path, codes: int) -> np.ndarray | None:
    """Other codes of each, (K, n) int32; None without the file."""
    if not path.exists():
        return None
    table = load_npy(path)
    if not are_synonyms(table, codes):
        raise InputError(f"{path} does not fit a codebook of {codes} codes", "remove it, or take the right one")
    return np.array(table)


def parse_npy(data: bytes) -> np.ndarray:
    """The array of a .npy file in memory, read-only; ValueError if its bytes do not fit its header exactly."""
    file = io.BytesIO(data)
    shape, order, dtype = _header(file)
    if dtype.itemsize * prod(shape) != len(data) - file.tell():
        raise ValueError(f"{len(data) - file.tell()} bytes for {dtype} of shape {shape}")
    return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape, order=order)


def load_npy(path: Path) -> np.ndarray:
    """The array of a file, mapped."""
    try:
        with open_plain(path) as file:
            if file.read(2) == b"PK":
                raise InputError(f"{path} is an archive, as of several arrays", "give a .npy file")
            file.seek(0)
            shape, order, dtype = _header(file)
            left = os.fstat(file.fileno()).st_size - file.tell()
            if dtype.itemsize * prod(shape) > left:
                raise ValueError(f"{left} bytes for {dtype} of shape {shape}")
            return np.memmap(file, dtype, "r", file.tell(), shape, order)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a numpy array", str(error)) from error


def load_table(path: Path) -> np.ndarray:
    """The code vectors of a file, (K, C), mapped."""
    table = load_npy(path)
    if table.ndim != 2 or table.dtype.kind not in "biuf":
        raise InputError(f"{path} holds {table.dtype} of shape {table.shape}", "(K, C) numbers are needed")
    return table


def _header(file: BinaryIO) -> tuple[tuple[int, ...], Literal["C", "F"], np.dtype]:
    """Shape, order and type of the array whose file this is, left at the first value; ValueError for anything else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of files that Python 2 has written
            version = np.lib.format.read_magic(file)
            if version not in ((1, 0), (2, 0), (3, 0)):
                raise ValueError(f"version {version} of the format")
            # version 3 is 2 with fields of other alphabets, and fields are not read
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, by_column, dtype = read(file)
    except Exception as error:  # numpy reads it as Python's own words: SyntaxError, TokenError, MemoryError, ...
        raise ValueError(" ".join(str(error).split())[:200] or type(error).__name__) from error
    whole = all(type(side) is int and side >= 0 for side in shape)
    if dtype.hasobject or not dtype.itemsize or not whole:
        raise ValueError(f"{dtype} of shape {shape}")
    if dtype.itemsize * prod(max(side, 1) for side in shape) > sys.maxsize:  # numpy's own limit, of empty arrays too
        raise ValueError(f"{dtype} of shape {shape}, which is too large")
    return shape, "F" if by_column else "C", dtype
