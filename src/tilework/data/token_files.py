"""Codes in other people's containers: what tar and Parquet files of codes have in common.

Beside the files that we write lies codebook.safetensors, as in a store, and a description says the rest; files without
one are read by what the user tells.

N images | V views | H, W code grid | K codes | C code dim
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from tilework.core.codebook import are_synonyms
from tilework.core.config import decode
from tilework.core.errors import ConfigError, DamageError, InputError
from tilework.core.files import sha256, write
from tilework.data.labels import Label, number_labels
from tilework.data.npy_files import load_table
from tilework.store import Store, StoreWriter
from tilework.store.manifest import Frame, with_frame
from tilework.store.spool import LARGEST_VOCABULARY

CODEBOOK = "codebook.safetensors"
FORMAT = "tilework tokens"
VERSION = 1
TOGETHER = 1024  # images
LARGEST_TABLE = 1 << 28  # numbers of a codebook
FREE_TABLE = 1 << 26  # numbers for all codes of a tokenizer, whose file holds only those in use: 262,144 codes of 256
MOST_TIMES = 64  # as many as the file holds, for larger ones: a few bytes must not claim gigabytes


@dataclass(frozen=True)
class Description:
    """What files of codes say of themselves."""

    images: int
    grid: tuple[int, ...]
    vocabulary: int
    classes: tuple[str, ...]
    views: int
    tokenizer: dict[str, str]
    tokenizer_codes: int
    preprocessing: str
    licence: str
    codebook: str  # SHA-256 of the file beside
    frame: Frame = "cover"
    files: dict[str, str] = field(default_factory=dict)  # SHA-256 of each, where they have no checksums of their own

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the codes of one image: (H, W), (T,), or with V before them where there are several views."""
        return (self.views, *self.grid) if self.views > 1 else self.grid

    def text(self) -> bytes:
        """As JSON."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1).encode() + b"\n"

    @staticmethod
    def parse(data: bytes, where: Path) -> Description:
        """What `text` gave."""
        try:
            told = json.loads(data)
            if told.pop("format") != FORMAT or told.pop("version") != VERSION:
                raise DamageError(f"{where} is of another format or version", "update Tilework")
            found: Description = decode(Description, with_frame(told))
        except (ValueError, KeyError, TypeError, AttributeError, ConfigError, RecursionError) as error:
            raise DamageError(f"{where} is malformed", f"restore it ({error})") from error
        if len(found.grid) not in (1, 2, 3) or min(*found.grid, found.views, found.vocabulary, found.images) < 1:
            raise DamageError(f"{where} is malformed", "a grid, vocabulary or number of impossible size")
        return found


class Tokens(Protocol):
    """Codes of images in a fixed order, with names and labels."""

    @property
    def where(self) -> Path:
        """What messages name."""

    @property
    def described(self) -> Description | None:
        """What the files say of themselves."""

    @property
    def keys(self) -> Sequence[str]:
        """The name of each image."""

    @property
    def found(self) -> Sequence[Label]:
        """The label of each image as it is written."""

    def batches(self) -> Iterator[np.ndarray]:
        """Integers of some images at a time, in order: (B, ...)."""


def describe(store: Store, root: Path, files: dict[str, str] | None = None) -> Description:
    """A description of a store, whose codebook is written to the folder."""
    tensors = {"codebook": store.codebook.vectors, "used": store.used}
    if store.codebook.synonyms is not None:
        tensors["synonyms"] = store.codebook.synonyms
    write(root / CODEBOOK, save(tensors))
    told = store.manifest
    return Description(
        len(store), store.grid, store.vocabulary, store.classes, store.views, told.tokenizer, told.tokenizer_codes,
        told.preprocessing, told.licence, sha256(root / CODEBOOK), told.frame, files or {},
    )  # fmt: skip


def codes_of(store: Store) -> Iterator[tuple[range, np.ndarray]]:
    """Codes by the store's numbers, some images at a time: (B, H, W), (B, T), or (B, V, ...) with several views."""
    kind = np.uint16 if store.vocabulary <= 1 << 16 else np.int32
    for start in range(0, len(store), TOGETHER):
        index = range(start, min(start + TOGETHER, len(store)))
        views = [store.batch(np.array(index), view) for view in range(store.views)]
        yield index, (np.stack(views, 1) if store.views > 1 else views[0]).astype(kind)


def unique_keys(store: Store) -> list[str]:
    """The names of all images; refused if two are alike."""
    keys: list[str] = store.column("key")
    if len(set(keys)) < len(keys):
        raise InputError(f"{store.path} has two images of one name", "names must differ: make a subset")
    return keys


def left_out(store: Store) -> list[str]:
    """Columns that do not go along into other containers."""
    return [column.name for column in store.manifest.columns if column.name not in ("label", "key")]


def store_tokens(
    tokens: Tokens,
    out: Path,
    codebook: Path | None = None,
    grid: tuple[int, int] | None = None,
    codec: str = "auto",
    licence: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """A store of codes; codebook and grid are for files that do not describe themselves."""
    told, where = tokens.described, str(tokens.where)
    if told is not None and (codebook or grid):
        raise ConfigError(f"{where} says itself how its codes lie", "leave out --codebook and --grid")
    if told is not None and told.images != len(tokens.keys):
        raise DamageError(f"{where} has {len(tokens.keys)} of {told.images} images", "restore the files")
    settings: dict[str, Any] = {"licence": licence}
    if told is None:
        highest = max(int(ids.max(initial=0)) for ids in tokens.batches()) if codebook is None else 0
        if highest >= LARGEST_VOCABULARY:
            raise InputError(f"a code of {highest} in {where}", f"at most {LARGEST_VOCABULARY} codes can be stored")
        table = np.zeros((highest + 1, 0), np.float32) if codebook is None else load_table(codebook)
        used = np.arange(len(table))
    else:
        table, used, synonyms = _codebook(tokens.where, told)
        settings = {"tokenizer": told.tokenizer, "preprocessing": told.preprocessing, "frame": told.frame}
        settings |= {"used": used, "synonyms": synonyms}
        settings |= {"licence": licence or told.licence, "views": told.views}
    labels, classes = number_labels(where, tokens.found, told.classes if told else None)
    done = 0
    with StoreWriter(out, table, classes, codec, **settings) as writer:
        for ids in tokens.batches():
            shape = told.shape if told else grid or ids.shape[1:]
            if min(grid or (1,)) < 1 or ids[0].size != prod(shape):
                raise InputError(f"{ids[0].size} codes for a grid of {shape}", "change --grid")
            if not 0 <= ids.min() <= ids.max() < len(used):
                raise InputError(f"codes {ids.min()}..{ids.max()} in {where}", f"0..{len(used) - 1} are known")
            part = slice(done, done + len(ids))
            writer.add(used[ids.reshape(-1, *shape)], labels[part], tokens.keys[part])
            done += len(ids)
            progress(done, len(labels))


def _codebook(where: Path, told: Description) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """A table of the tokenizer's size with the vectors of the codes that are kept, their numbers, and their synonyms.

    (K', C), (K,), and (K', n) where the store had some.
    """
    path = (where if where.is_dir() else where.parent) / CODEBOOK
    try:
        if path.stat().st_size > 5 * LARGEST_TABLE or sha256(path) != told.codebook:
            raise DamageError(f"{path} is not the codebook of these files", "restore it")
        tensors = load(path.read_bytes())
        book, used = tensors["codebook"], tensors["used"]
        fits = book.ndim == 2 and book.dtype == np.float32 and used.dtype == np.int32 and used.shape == (len(book),)
        if not fits or len(book) != told.vocabulary or used.min() < 0 or used.max() >= LARGEST_VOCABULARY:
            raise DamageError(f"{path} does not fit the codes", "restore it")
        synonyms = tensors.get("synonyms")
        if synonyms is not None and not are_synonyms(synonyms, len(book)):
            raise DamageError(f"{path} holds synonyms that do not fit its codes", "restore it")
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise DamageError(f"{path} cannot be read", f"restore it ({error})") from error
    count = max(told.tokenizer_codes, int(used.max()) + 1)
    if count > LARGEST_VOCABULARY or count * book.shape[1] > _most(book):
        raise DamageError(f"{path} is of {count} codes of {book.shape[1]} numbers", "so many cannot be stored")
    if synonyms is not None and count * synonyms.shape[1] > _most(synonyms):
        raise DamageError(f"{path} is of {count} codes with {synonyms.shape[1]} synonyms", "so many cannot be stored")
    table = np.zeros((count, book.shape[1]), np.float32)
    table[used] = book
    if synonyms is None:
        return table, used, None
    every = np.tile((np.arange(count, dtype=np.int32)[:, None] + 1) % count, (1, synonyms.shape[1]))  # unused codes
    every[used] = used[synonyms]
    return table, used, every


def _most(table: np.ndarray) -> int:
    """Numbers that a table may become when it is given rows for all codes of the tokenizer."""
    return min(LARGEST_TABLE, max(FREE_TABLE, MOST_TIMES * table.size))
