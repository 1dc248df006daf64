"""Writing a store: codes are spooled, then coded by what suits them all; the directory appears when all is well.

B images | H, W code grid | K codes | C code dim
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np
from safetensors.numpy import save

from tilework.core.errors import InputError
from tilework.core.files import new_directory, write
from tilework.store.choose import choose_codec
from tilework.store.codec import check_codes
from tilework.store.columns import pack_column
from tilework.store.manifest import Manifest, ShardEntry, seal
from tilework.store.shard import write_shard
from tilework.version import __version__

SPOOL = "spool"  # codes as they come, until all are there and tables can be fitted


@dataclass
class StoreWriter:
    """`with StoreWriter(path, ...) as writer: writer.add(ids, labels, keys)`."""

    path: Path
    codebook: np.ndarray  # (K, C) float32
    classes: Sequence[str]
    codec: str = "auto"  # the smallest of the fast ones
    tokenizer: dict[str, str] = field(default_factory=dict)
    preprocessing: str = ""
    licence: str = ""
    shard_images: int = 65536

    def __enter__(self) -> StoreWriter:
        if self.codebook.ndim != 2 or not self.codebook.size or self.shard_images < 1:
            what = f"a codebook of {self.codebook.shape} and shards of {self.shard_images} images"
            raise InputError(what, "give a (K, C) table and at least one image per shard")
        self._labels: list[int] = []
        self._keys: list[str] = []
        self._grid: tuple[int, int] | None = None
        self._place: AbstractContextManager[Path] = new_directory(self.path)
        self._root = self._place.__enter__()
        self._narrow = np.dtype(np.uint16 if len(self.codebook) <= 1 << 16 else np.uint32)
        self._spool = (self._root / SPOOL).open("wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._spool.close()
        else:
            try:
                self._finish()
            except BaseException as failed:
                self._place.__exit__(type(failed), failed, failed.__traceback__)
                raise
        self._place.__exit__(kind, error, trace)

    def add(self, ids: np.ndarray, labels: Sequence[int] | np.ndarray, keys: Sequence[str]) -> None:
        """Append images. ids: (B, H, W) integers; labels, keys: B each."""
        if ids.ndim != 3 or 0 in ids.shape[1:] or not np.issubdtype(ids.dtype, np.integer):
            raise InputError(f"ids of shape {ids.shape} and type {ids.dtype}", "(B, H, W) integers are needed")
        grid = (int(ids.shape[1]), int(ids.shape[2]))
        if not len(ids) == len(labels) == len(keys):
            raise InputError(f"{len(ids)} images with {len(labels)} labels and {len(keys)} keys", "give one each")
        if self._grid not in (None, grid):
            raise InputError(f"a grid of {grid} in a store of {self._grid}", "resize all images alike")
        self._grid = grid
        flat = ids.reshape(len(ids), grid[0] * grid[1])
        check_codes(flat, len(self.codebook), first=len(self._labels))
        self._spool.write(flat.astype(self._narrow).tobytes())
        self._labels += [int(label) for label in labels]
        self._keys += [str(key) for key in keys]

    def _recode(self, grid: tuple[int, int]) -> tuple[str, tuple[ShardEntry, ...]]:
        """Spooled codes to shards by the codec that suits them; the spool goes."""
        self._spool.close()
        spool = self._root / SPOOL
        ids = np.memmap(spool, self._narrow, "r", shape=(len(self._labels), grid[0] * grid[1]))
        name, codec = choose_codec(self.codec, ids, len(self.codebook), grid[1])
        shards = []
        for number, first in enumerate(range(0, len(ids), self.shard_images)):
            part = ids[first : first + self.shard_images].astype(np.int32)
            records, sizes = codec.encode(part)
            shards.append(ShardEntry(f"shards/{number:05d}.tiles", len(part)))
            write_shard(self._root / shards[-1].file, records, sizes, first)
        if tables := codec.tables():
            write(self._root / "tables.safetensors", save(tables))
        del ids
        spool.unlink()
        return name, tuple(shards)

    def _finish(self) -> None:
        if not self._labels or self._grid is None:
            raise InputError(f"no images for {self.path}", "an empty store is of no use")
        labels = np.array(self._labels)
        if labels.min() < 0 or labels.max() >= len(self.classes):
            raise InputError(f"labels {labels.min()}..{labels.max()} for {len(self.classes)} classes", "check them")
        codec, shards = self._recode(self._grid)
        narrow = np.min_scalar_type(len(self.classes) - 1)
        write(self._root / "codebook.safetensors", save({"codebook": np.ascontiguousarray(self.codebook, np.float32)}))
        write(self._root / "columns/label.safetensors", pack_column(labels.astype(narrow)))
        write(self._root / "columns/key.safetensors", pack_column(self._keys))
        manifest = Manifest(
            images=len(labels),
            grid=self._grid,
            vocabulary=len(self.codebook),
            codec=codec,
            classes=tuple(self.classes),
            shards=shards,
            columns=("label", "key"),
            tokenizer=self.tokenizer,
            preprocessing=self.preprocessing,
            licence=self.licence,
            software=f"tilework {__version__}",
        )
        seal(self._root, manifest)
