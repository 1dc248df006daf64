"""Reading a store: any image or batch of images, with checksums verified.

B images | V views | H, W code grid | K codes | C code dim
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from os import cpu_count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from tilework.core.codebook import Codebook, are_synonyms
from tilework.core.errors import DamageError, InputError, OutputError, TileworkError
from tilework.core.files import locked, read_plain, sha256, write
from tilework.core.location import Url, location
from tilework.store.codec import Chained, codecs
from tilework.store.columns import RecordColumn, Values, entry_of, pack_column, unpack_column, write_column
from tilework.store.manifest import NAME, Manifest, read, write_manifest
from tilework.store.shard import Shards

if TYPE_CHECKING:
    from tilework.store.remote import Remote

MOST_CODES = 1 << 25  # decoded in one call


class Store:
    """A token store at a path or URL. Each process memory-maps a shard when it first needs it."""

    def __init__(self, path: Path | str) -> None:
        self.path = location(path)
        self._remote = _remote(self.path) if isinstance(self.path, Url) else None
        self.manifest: Manifest = self._remote.manifest if self._remote else read(self._directory)
        self.grid = self.manifest.grid
        self.views = self.manifest.views
        self.classes = self.manifest.classes
        self.vocabulary = self.manifest.vocabulary
        self.together = max(1, min(4096, MOST_CODES // self.manifest.length))  # records worth decoding in one call
        self._shards = Shards(self._remote or self._directory, self.manifest.shards)
        tables = self._checked("tables.safetensors", load) if "tables.safetensors" in self.manifest.files else {}
        self._codec = codecs[self.manifest.codec].load(tables, self.manifest.length, self.vocabulary, self.grid[-1])
        self._chained = self._codec if isinstance(self._codec, Chained) and self._codec.block > 1 else None

    def __len__(self) -> int:
        return self.manifest.images

    def __repr__(self) -> str:
        size = sum(self.sizes.values()) / len(self)
        codes = f"{'x'.join(map(str, self.grid))} of {self.vocabulary:,} codes"
        views = f" in {self.views} views" if self.views > 1 else ""
        told = f"{len(self):,} images{views}, {len(self.classes):,} classes, {codes}, {size:,.0f} B per image"
        return f"Store({str(self.path)!r}: {told})"

    def __getitem__(self, index: int) -> np.ndarray:
        """Codes of one image, (H, W) int32; of its first view, if there are several."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        return self.batch(np.array([index % len(self)]))[0]

    def __iter__(self) -> Iterator[np.ndarray]:
        for start in range(0, len(self), min(1024, self.together)):
            yield from self.batch(np.arange(start, min(start + min(1024, self.together), len(self))))

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}  # another process maps for itself

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"])  # type: ignore[misc]

    def batch(self, index: np.ndarray, view: int | np.ndarray = 0) -> np.ndarray:
        """Codes of any images. index: (B,); view: one for all, or (B,). Returns (B, H, W) int32, or (B, T)."""
        index = np.asarray(index, np.int64)
        if self.views == 1 and isinstance(view, int) and view == 0:
            return self._decode(index)
        view = np.asarray(view, np.int64)
        if index.size and not 0 <= index.min() <= index.max() < len(self):
            raise IndexError(f"images {index.min()}..{index.max()} of {len(self)}")
        if view.size and not 0 <= view.min() <= view.max() < self.views:
            raise IndexError(f"views {view.min()}..{view.max()} of {self.views}")
        return self._decode(index * self.views + view)

    def keep_open(self, count: int) -> None:
        """Keep at most so many shards open, those used last; without it, all that were ever needed stay open."""
        self._shards.most_open = count

    def _decode(self, index: np.ndarray) -> np.ndarray:
        """Codes of records. index: (B,), numbered over images and views."""
        if self._chained is None:
            records = self._shards.gather(index)
        else:
            needed, chain, wanted = chains(index, self._chained.block)
            records = self._shards.gather(needed)
        try:  # all in one call, from however many shards
            out = self._codec.decode(*records) if not self._chained else self._chained.decode(*records, chain)[wanted]
        except DamageError as error:
            if len(index) > 1:  # which of them is it?
                for one in index.tolist():
                    self._decode(np.array([one]))
            _, shard, local = next(self._shards.find(index))
            raise DamageError(f"record {local[0]} of shard {shard.path.name}: {error.what}", error.hint) from error
        return out.reshape(-1, *self.grid)

    @cached_property
    def _codes(self) -> dict[str, np.ndarray]:
        return self._checked("codebook.safetensors", load)

    @cached_property
    def codebook(self) -> Codebook:
        """Code vectors, and the tokenizer's number of each code."""
        vectors = self._codes.get("codebook", np.empty(0))
        vectors = vectors.astype(np.float32) if vectors.dtype == np.float16 else vectors
        if vectors.ndim != 2 or len(vectors) != self.vocabulary or vectors.dtype != np.float32:
            raise DamageError(f"the codebook of {self.path} does not fit its {self.vocabulary} codes", "restore it")
        synonyms = self._codes.get("synonyms")
        if synonyms is not None and not are_synonyms(synonyms, self.vocabulary):
            raise DamageError(f"the synonyms of {self.path} do not fit its {self.vocabulary} codes", "restore them")
        return Codebook(vectors, self.used, synonyms=synonyms)

    @cached_property
    def used(self) -> np.ndarray:
        """The tokenizer's number of each code, (K,): `store.used[ids]` is what its decoder takes."""
        used = self._codes.get("used", np.arange(self.vocabulary, dtype=np.int32))
        if used.shape != (self.vocabulary,) or used.dtype != np.int32 or (used[1:] <= used[:-1]).any() or used[0] < 0:
            raise DamageError(f"the used codes of {self.path} do not fit its {self.vocabulary} codes", "restore them")
        return used

    def synonyms(self, count: int = 5) -> np.ndarray:
        """The nearest codes of each code, (K, count)."""
        return self.codebook.nearest(count)

    def column(self, name: str) -> Any:
        """Values of a column for all images: an array, a list of texts, or a sequence that reads them one by one."""
        entry = next((entry for entry in self.manifest.columns if entry.name == name), None)
        if entry is None:
            names = ", ".join(entry.name for entry in self.manifest.columns)
            raise InputError(f"{self.path} has no column '{name}'", f"it has {names}")
        if entry.kind in ("bytes", "ragged"):
            return RecordColumn(self._remote or self._directory, entry)
        values = self._checked(entry.file, lambda data: unpack_column(data, entry.kind))
        if len(values) != len(self):
            raise DamageError(f"column '{name}' of {self.path} has {len(values)} values", "restore it")
        return values

    def add_column(self, name: str, values: Values) -> None:
        """Add a column; shards are not rewritten, and the manifest is written last."""
        entry = entry_of(name, values)
        if len(values) != len(self):
            raise InputError(f"{len(values)} values of column '{name}' for {len(self)} images", "give one each")
        root = self._directory
        with locked(root):
            current = read(root)
            if name in (other.name for other in current.columns):
                raise OutputError(f"{root} has a column '{name}'", "choose another name")
            _clear(root, name)
            if entry.kind in ("bytes", "ragged"):
                entry = write_column(root, entry, [values])
            else:
                write(root / entry.file, pack_column(values))
            write_manifest(root, replace(current, columns=(*current.columns, entry)))
            self.manifest = read(root)

    def drop_column(self, name: str) -> None:
        """Remove a column, if it is there; the manifest is written first, so that a kill leaves a whole store."""
        root = self._directory
        if name in ("label", "key"):
            raise InputError(f"column '{name}' belongs to every store", "leave it")
        with locked(root):
            current = read(root)
            kept = tuple(column for column in current.columns if column.name != name)
            if len(kept) < len(current.columns):
                write_manifest(root, replace(current, columns=kept))
            _clear(root, name)
            self.manifest = read(root)

    def check_writable(self) -> None:
        """Raise if the store cannot be changed: it is remote, or not writable."""
        _ = self._directory

    @property
    def _directory(self) -> Path:
        """The directory of the store on this machine."""
        if isinstance(self.path, Url):
            raise OutputError(f"{self.path} is read-only", "copy the store to this machine and change the copy")
        return self.path

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each part of the store."""
        manifest = self._remote.manifest_bytes if self._remote else (self._directory / NAME).stat().st_size
        parts = {"tokens": 0, "codebook": 0, "columns": 0, "manifest": manifest}
        for name, file in self.manifest.files.items():
            kind = {"shards": "tokens", "tables.safetensors": "tokens", "columns": "columns"}.get(name.split("/")[0])
            parts[kind or "codebook"] += file.bytes
        return parts

    def column_bytes(self, name: str) -> int:
        """Bytes of a column's files."""
        files = self.manifest.files.items()
        return sum(f.bytes for file, f in files if file.startswith((f"columns/{name}/", f"columns/{name}.")))

    def histogram(self) -> np.ndarray:
        """How often each code occurs, (K,) int64."""
        counts = np.zeros(self.vocabulary, np.int64)
        records = len(self._shards)
        for start in range(0, records, self.together):
            ids = self._decode(np.arange(start, min(start + self.together, records)))
            counts += np.bincount(ids.ravel(), minlength=self.vocabulary)
        return counts

    def verify(
        self, deep: bool = False, threads: int = 0, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> list[str]:
        """Check every file against its hash and every record against its checksum; returns one line per problem.

        deep: decode every record, not some of them, which finds mistakes of the writer; threads: 0 for all cores.
        Of a store behind a URL every file is fetched into the cache; files that it does not name are not looked for.
        """
        problems = [] if self._remote else [f"{name} is not in the manifest" for name in self._strangers()]
        with ThreadPoolExecutor(threads or cpu_count() or 1) as pool:
            for done, lines in enumerate(pool.map(self._verify_file, self.manifest.files), 1):
                problems += lines
                progress(done, len(self.manifest.files))
            rows = [self._shards, *(self.column(c.name)._shards for c in self.manifest.columns if c.shards)]
            jobs = [(shards, number) for shards in rows for number in range(len(shards.entries))]
            for lines in pool.map(lambda job: _verify_shard(*job), jobs):
                problems += lines
        return list(dict.fromkeys(problems)) or self._verify_contents(deep)

    def _strangers(self) -> list[str]:
        """Files in the directory that the manifest does not list."""
        root, known = self._directory, {NAME, *self.manifest.files}
        return sorted({path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()} - known)

    def _verify_file(self, name: str) -> list[str]:
        if self._remote:
            try:
                self._remote.open(name).close()
            except DamageError as error:
                return [error.what]
            return []
        path, file = self._directory / name, self.manifest.files[name]
        try:
            if not path.is_file():
                return [f"{name} is missing"]
            if path.stat().st_size != file.bytes or sha256(path) != file.sha256:
                return [f"{name} differs from its hash in the manifest"]
        except OSError as error:
            return [f"{name} cannot be read ({error})"]
        return []

    def _verify_contents(self, deep: bool) -> list[str]:
        """Problems with the contents of files that are intact one by one."""
        problems = []
        try:
            _ = self.codebook
        except TileworkError as error:
            problems.append(error.what)
        for entry in self.manifest.columns:
            try:
                values = self.column(entry.name)
                if entry.shards:
                    for start in range(0, len(values) if deep else min(len(values), 256), 4096):
                        _ = values[start : start + 4096]
            except TileworkError as error:
                problems.append(error.what)
        count = len(self._shards)
        some = np.arange(count) if deep else np.linspace(0, count - 1, min(count, 256)).astype(np.int64)
        for start in range(0, len(some), self.together):
            index = some[start : start + self.together]
            try:
                self._decode(index)
            except TileworkError:
                problems += [line for i in index.tolist() if (line := self._verify_record(i))]
        return problems

    def _verify_record(self, index: int) -> str:
        try:
            self._decode(np.array([index]))
        except TileworkError as error:
            return error.what
        return ""

    def _checked(self, name: str, parse: Callable[[bytes], Any]) -> Any:
        """Contents of a small file, verified against its hash."""
        path = f"{self.path}/{name}"
        try:
            if self._remote:
                with self._remote.open(name) as file:
                    return parse(file.read())
            local = self._directory / name
            if name not in self.manifest.files or not local.is_file():
                raise DamageError(f"{self.path} has no {name}", "restore it")
            if sha256(local) != self.manifest.files[name].sha256:
                raise DamageError(f"{path} is damaged", "restore it")
            return parse(read_plain(local))
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise DamageError(f"{path} cannot be read", f"restore it ({error})") from error


def chains(index: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Records that some build upon, each with all before it in its block.

    index: (B,). Returns their numbers and their places in the blocks, (C,) both, and where the wanted ones are, (B,).
    """
    place = index % block
    first, which = np.unique(index - place, return_inverse=True)  # record of each block
    count = np.zeros(len(first), np.int64)  # records of each block that are needed
    np.maximum.at(count, which, place + 1)
    begin = np.cumsum(count) - count
    chain = np.arange(int(count.sum())) - np.repeat(begin, count)
    return np.repeat(first, count) + chain, chain, begin[which] + place


def _verify_shard(shards: Shards, number: int) -> list[str]:
    try:
        shard = shards[number]
    except TileworkError as error:
        return [error.what]
    return [f"{which} of shard {shard.path.name} is damaged" for which in shard.damaged()]


def _remote(url: Url) -> Remote:
    from tilework.store.remote import Remote  # what the network needs takes time to import

    return Remote(url)


def _clear(root: Path, name: str) -> None:
    """Remove files of a column whose writer was killed."""
    try:
        for left in (*root.glob(".*.tmp"), *(root / "columns").rglob(".*.tmp")):
            left.unlink()
        (root / f"columns/{name}.safetensors").unlink(missing_ok=True)
        if (root / f"columns/{name}").is_dir():
            shutil.rmtree(root / f"columns/{name}")
    except OSError as error:
        raise OutputError(f"cannot write {root}", str(error)) from error
