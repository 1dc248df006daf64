"""Plain numpy arrays of codes, read and written.

N images | V views | H, W code grid | T codes of a sequence | K codes | C code dim | n synonyms of a code
"""

from __future__ import annotations

import io
from collections.abc import Callable
from math import prod
from pathlib import Path

import numpy as np

from tilework.core.codebook import are_synonyms
from tilework.core.errors import InputError
from tilework.core.files import new_directory
from tilework.data.labels import UNLABELLED
from tilework.store import Store, StoreWriter

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
    if ids.ndim not in (2, 3) or not ids.size or not np.issubdtype(ids.dtype, np.integer):
        raise InputError(f"{path} holds {ids.dtype} of shape {ids.shape}", "(N, H, W) or (N, T) integers are needed")
    if grid is not None:
        if ids[0].size != grid[0] * grid[1]:
            raise InputError(f"{ids[0].size} codes for a grid of {grid[0]}x{grid[1]}", "change --grid")
        ids = ids.reshape(-1, *grid)
    table = np.zeros((int(ids.max()) + 1, 0), np.float32) if codebook is None else load_npy(codebook)
    numbers = np.zeros(len(ids), np.int64) if labels is None else load_npy(labels)
    if numbers.shape != (len(ids),) or not np.issubdtype(numbers.dtype, np.integer) or numbers.min() < 0:
        raise InputError(f"{labels} holds {numbers.dtype} of shape {numbers.shape}", f"{len(ids)} labels are needed")
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
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of the format")
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_column, dtype = header(file)
    if dtype.hasobject or not dtype.itemsize or dtype.itemsize * prod(shape) != len(data) - file.tell():
        raise ValueError(f"{len(data) - file.tell()} bytes for {dtype} of shape {shape}")
    return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape, order="F" if by_column else "C")


def load_npy(path: Path) -> np.ndarray:
    """The array of a file, mapped."""
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} cannot be read as a numpy array", str(error)) from error
    if not isinstance(loaded, np.ndarray):
        raise InputError(f"{path} holds several arrays", "give a .npy file")
    return loaded
