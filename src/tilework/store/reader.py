"""Reading a store: any image or batch of images, checked on the way.

B images | H, W code grid | K codes | C code dim
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from tilework.core.errors import DamageError, InputError, TileworkError
from tilework.core.files import sha256
from tilework.store.codec import codecs
from tilework.store.columns import unpack_column
from tilework.store.manifest import NAME, Manifest, read
from tilework.store.shard import Shard


class Store:
    """A token store. Shards are mapped when first needed, in each process for itself."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.manifest: Manifest = read(self.path)
        self.grid = self.manifest.grid
        self.classes = self.manifest.classes
        self.vocabulary = self.manifest.vocabulary
        counts = [shard.records for shard in self.manifest.shards]
        self._firsts = np.cumsum([0, *counts])  # first image of each shard, and the end
        self._shards: dict[int, Shard] = {}
        length = self.grid[0] * self.grid[1]
        tables = self._checked("tables.safetensors", load) if "tables.safetensors" in self.manifest.files else {}
        self._codec = codecs[self.manifest.codec].load(tables, length, self.vocabulary, self.grid[1])

    def __len__(self) -> int:
        return self.manifest.images

    def __getitem__(self, index: int) -> np.ndarray:
        """Codes of one image, (H, W) int32."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        return self.batch(np.array([index % len(self)]))[0]

    def __iter__(self) -> Iterator[np.ndarray]:
        for start in range(0, len(self), 1024):
            yield from self.batch(np.arange(start, min(start + 1024, len(self))))

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}  # another process maps for itself

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"])  # type: ignore[misc]

    def batch(self, index: np.ndarray) -> np.ndarray:
        """Codes of any images. index: (B,); returns (B, H, W) int32."""
        index = np.asarray(index, np.int64)
        if index.size and not 0 <= index.min() <= index.max() < len(self):
            raise IndexError(f"images {index.min()}..{index.max()} of {len(self)}")
        out = np.empty((len(index), self.grid[0] * self.grid[1]), np.int32)
        owner = np.searchsorted(self._firsts, index, side="right") - 1
        for number in np.unique(owner).tolist():
            rows = np.flatnonzero(owner == number)
            shard = self._shard(number)
            local = index[rows] - self._firsts[number]
            shard.check(local)
            try:
                out[rows] = self._codec.decode(shard.data, shard.starts[local], shard.sizes[local])
            except DamageError as error:
                raise DamageError(f"shard {shard.path.name}: {error.what}", error.hint) from error
        return out.reshape(-1, *self.grid)

    @cached_property
    def codebook(self) -> np.ndarray:
        """Code vectors, (K, C) float32."""
        return self._checked("codebook.safetensors", load)["codebook"]

    def column(self, name: str) -> Any:
        """Values of a column for all images: an array, or a list of strings."""
        if name not in self.manifest.columns:
            raise InputError(f"{self.path} has no column '{name}'", f"it has {', '.join(self.manifest.columns)}")
        values = self._checked(f"columns/{name}.safetensors", unpack_column)
        if len(values) != len(self):
            raise DamageError(f"column '{name}' of {self.path} has {len(values)} values", "restore it")
        return values

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each part of the store."""
        parts = {"tokens": 0, "codebook": 0, "columns": 0, "manifest": (self.path / NAME).stat().st_size}
        for name, file in self.manifest.files.items():
            kind = {"shards": "tokens", "tables.safetensors": "tokens", "columns": "columns"}.get(name.split("/")[0])
            parts[kind or "codebook"] += file.bytes
        return parts

    def histogram(self) -> np.ndarray:
        """How often each code occurs, (K,) int64."""
        counts = np.zeros(self.vocabulary, np.int64)
        for start in range(0, len(self), 1024):
            ids = self.batch(np.arange(start, min(start + 1024, len(self))))
            counts += np.bincount(ids.ravel(), minlength=self.vocabulary)
        return counts

    def verify(self) -> list[str]:
        """Check every file against its hash and every record; returns what is wrong, one line each."""
        problems = []
        for name, file in self.manifest.files.items():
            path = self.path / name
            if not path.is_file():
                problems.append(f"{name} is missing")
            else:
                try:
                    if path.stat().st_size != file.bytes or sha256(path) != file.sha256:
                        problems.append(f"{name} differs from its hash in the manifest")
                except OSError as error:
                    problems.append(f"{name} cannot be read ({error})")
        known = {NAME, *self.manifest.files}
        found = {path.relative_to(self.path).as_posix() for path in self.path.rglob("*") if path.is_file()}
        problems += [f"{name} is not in the manifest" for name in sorted(found - known)]
        for number, entry in enumerate(self.manifest.shards):
            for record in range(entry.records):
                try:
                    self.batch(self._firsts[number : number + 1] + record)
                except TileworkError as error:
                    problems.append(error.what)
                    if "record" not in error.what:
                        break  # the whole shard is unusable
        return problems

    def _shard(self, number: int) -> Shard:
        if number not in self._shards:
            entry = self.manifest.shards[number]
            self._shards[number] = Shard(self.path / entry.file, int(self._firsts[number]), entry.records)
        return self._shards[number]

    def _checked(self, name: str, parse: Callable[[bytes], Any]) -> Any:
        """Contents of a small file, compared with its hash."""
        path = self.path / name
        if name not in self.manifest.files or not path.is_file():
            raise DamageError(f"{self.path} has no {name}", "restore it")
        try:
            if sha256(path) != self.manifest.files[name].sha256:
                raise DamageError(f"{path} is damaged", "restore it")
            return parse(path.read_bytes())
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise DamageError(f"{path} cannot be read", f"restore it ({error})") from error
