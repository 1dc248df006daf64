"""Sealing a spool: all parts are combined into a store, which appears atomically.

The used codes are renumbered, a codec is fitted, every part is encoded with it, and the manifest is written last.
Everything happens inside the spool: a process killed at any moment leaves a spool that can be sealed again, to the same
bytes.

N images | V views | T codes of a record | K codes of the tokenizer
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from tilework.core.codebook import cut_synonyms
from tilework.core.errors import InputError, OutputError, TileworkError
from tilework.core.files import locked, sync_tree, write
from tilework.store.choose import FAST, RUN, SAMPLE_TOKENS, STACKED, choose_codec, spread
from tilework.store.codec import Codec
from tilework.store.columns import ColumnEntry, Values, entry_of, join_values, pack_column, write_column
from tilework.store.manifest import NAME, Manifest, write_manifest
from tilework.store.shard import LARGEST_RECORDS, write_shards
from tilework.store.spool import Part, Plan, Spool
from tilework.version import __version__

TOGETHER = 4096  # records coded in one call
SHARD_IMAGES = 1 << 16


@dataclass(frozen=True)
class CodeMap:
    """Map from the tokenizer's code numbers to those of the store."""

    used: np.ndarray  # (K',) the tokenizer's number of each code that is kept
    number: np.ndarray  # (K,) the store's number of each code of the tokenizer; the nearest kept one if it is not kept
    kept: np.ndarray  # (K,) whether a code is kept

    @staticmethod
    def of(used: np.ndarray, codebook: np.ndarray, found: np.ndarray | None = None) -> CodeMap:
        """The map that keeps some codes. codebook: (K, C) of the tokenizer; found: (K,) whether a code occurs."""
        kept = np.zeros(len(codebook), bool)
        kept[used] = True
        number = np.zeros(len(codebook), np.int32)
        number[used] = np.arange(len(used))
        table = codebook[used]
        for code in np.flatnonzero(~kept if found is None else ~kept & found).tolist():
            number[code] = np.square(table - codebook[code]).sum(1).argmin()
        return CodeMap(used.astype(np.int32), number, kept)


def seal(
    spool: Spool,
    out: Path,
    codec: str = "auto",
    cut: bool = True,
    used: np.ndarray | None = None,
    parts: int = 0,
    shard_images: int = SHARD_IMAGES,
    progress: Callable[[int, int], None] = lambda done, total: None,
    held: bool = False,
) -> None:
    """Write the store and remove the spool.

    cut: keep only codes that occur, and their vectors; used: keep these codes, as another store does (overrides cut);
    parts: expected number, if the plan does not state it; held: the caller has locked the spool and removes it.
    """
    if shard_images < 1:
        raise InputError(f"shard_images is {shard_images}", "give 1 or more")
    with nullcontext() if held else locked(spool.path):
        try:
            if not _is_done(spool, out):
                if out.exists():
                    raise OutputError(f"{out} exists", "choose another path or remove it")
                sealed = spool.path / "sealed"
                if sealed.exists():
                    shutil.rmtree(sealed)
                _Seal(spool, sealed, parts or spool.plan.parts, progress).run(codec, cut, used, shard_images)
                _publish(spool, sealed, out)
        except OSError as error:
            raise OutputError(f"cannot write {out}", str(error)) from error
        if not held:
            spool.remove()


def clear(spool_path: Path, out: Path) -> None:
    """Remove the rest of the spool of a finished store."""
    with suppress(OSError, TileworkError):
        if not any(spool_path.iterdir()):
            spool_path.rmdir()
        elif (spool_path / "done").read_bytes().startswith(_digest(out / NAME)):
            Spool(spool_path, Plan(1, (1,), ()), np.zeros((1, 1))).remove()


def _is_done(spool: Spool, out: Path) -> bool:
    """Whether the store is finished and only the spool is left to remove."""
    mark, manifest = spool.path / "done", out / NAME
    return (
        mark.is_file()
        and manifest.is_file()
        and mark.read_bytes() == _digest(manifest) + _digest(spool.path / "plan.json")
    )


def _publish(spool: Spool, sealed: Path, out: Path) -> None:
    try:
        sync_tree(sealed)
        write(spool.path / "done", _digest(sealed / NAME) + _digest(spool.path / "plan.json"))
        out.parent.mkdir(parents=True, exist_ok=True)
        sealed.rename(out)
        try:
            sync_tree(out.parent, below=False)
        except OSError:
            out.rename(sealed)
            raise
    except OSError as error:
        raise OutputError(f"cannot write {out}", str(error)) from error


def _digest(file: Path) -> bytes:
    return hashlib.sha256(file.read_bytes()).hexdigest().encode()


class _Seal:
    def __init__(self, spool: Spool, root: Path, parts: int, progress: Callable[[int, int], None]) -> None:
        self.spool, self.plan, self.root, self.progress = spool, spool.plan, root, progress
        done = set(spool.done())
        self.parts = range(parts)
        missing = [number for number in self.parts if number not in done]
        if missing:
            shown = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
            hint = "tokenize those first (tilework tokenize --shard I/N)"
            raise InputError(f"{spool.path} lacks {len(missing)} of {parts} parts ({shown})", hint)
        if extra := sorted(done - set(self.parts)):
            raise InputError(f"{spool.path} holds a part {extra[0]} beyond the {parts} of its plan", "remove it")

    def run(self, codec: str, cut: bool, used: np.ndarray | None, shard_images: int) -> None:
        """Two passes over the parts: count, then code."""
        plan = self.plan
        counts, columns, images = self._count()
        if not images:
            raise InputError(f"no images in {self.spool.path}", "tokenize some first")
        _check_labels(columns.get("label"), plan.classes)
        if used is None:
            used = np.flatnonzero(counts) if cut else np.arange(plan.vocabulary)
        _check_used(used, plan.vocabulary)
        self.map = CodeMap.of(used, self.spool.codebook, counts > 0)
        if not self.spool.codebook.shape[1] and counts[~self.map.kept].any():
            what = "some codes are not in the reference store, and there is no codebook to find their nearest ones"
            raise InputError(what, "give a codebook, or leave out --like")
        every = -(-images * plan.views * int(np.prod(plan.grid)) // SAMPLE_TOKENS)
        sample = np.concatenate([ids[spread(len(ids), every, first)] for first, ids in self._ids()])
        names = STACKED if len(plan.grid) == 3 else FAST
        name, coder = choose_codec(codec, sample, len(used), plan.grid[-1], images * plan.views, names)
        chunks = self._chunks(coder, images * plan.views)
        shards = write_shards(self.root, "shards", chunks, min(shard_images * plan.views, LARGEST_RECORDS))
        if tables := coder.tables():
            write(self.root / "tables.safetensors", save(tables))
        tensors = {"codebook": _narrow_vectors(self.spool.codebook[used])}
        if len(used) < plan.vocabulary:
            tensors["used"] = used.astype(np.int32)
        if self.spool.synonyms is not None and len(used) > 1:
            tensors["synonyms"] = cut_synonyms(self.spool.synonyms, self.spool.codebook, used)
        write(self.root / "codebook.safetensors", save(tensors))
        manifest = Manifest(
            images=images,
            grid=plan.grid,
            vocabulary=len(used),
            codec=name,
            classes=plan.classes,
            shards=shards,
            columns=tuple(self._columns(columns)),
            views=plan.views,
            tokenizer=plan.tokenizer,
            tokenizer_codes=plan.vocabulary,
            substituted=int(counts[~self.map.kept].sum()),
            preprocessing=plan.preprocessing,
            licence=plan.licence,
            original_bytes=plan.original_bytes,
            software=f"tilework {__version__}",
        )
        write_manifest(self.root, manifest)

    def _count(self) -> tuple[np.ndarray, dict[str, Values], int]:
        """How often each code occurs; arrays and texts of all parts put together; the number of images."""
        counts = np.zeros(self.plan.vocabulary, np.int64)
        held: dict[str, list[Values]] = {}
        self.entries: dict[str, ColumnEntry] = {}
        alike = None
        images = 0
        for part in self._each():
            counts += np.bincount(part.ids.ravel(), minlength=len(counts))
            if not len(part.ids):
                continue
            images += len(part.ids) // self.plan.views
            self.entries = {name: entry_of(name, values) for name, values in part.columns.items()}
            forms = {n: (v.dtype, v.shape[1:]) for n, v in part.columns.items() if isinstance(v, np.ndarray)}
            if alike not in (None, (self.entries, forms)):
                raise InputError(f"the parts of {self.spool.path} have different columns", "give all the same columns")
            alike = self.entries, forms
            for name, entry in self.entries.items():
                if entry.kind in ("array", "text"):
                    held.setdefault(name, []).append(part.columns[name])
        return counts, {name: join_values(values) for name, values in held.items()}, images

    def _columns(self, held: dict[str, Values]) -> Iterator[ColumnEntry]:
        for name, entry in self.entries.items():
            if name in held:
                write(self.root / entry.file, pack_column(_narrow(name, held[name], len(self.plan.classes))))
                yield entry
            else:
                yield write_column(self.root, entry, (part.columns[name] for part in self._each() if len(part.ids)))

    def _each(self) -> Iterator[Part]:
        return map(self.spool.get, self.parts)

    def _ids(self) -> Iterator[tuple[int, np.ndarray]]:
        """Codes of the store, part by part, with the number of the first record."""
        first = 0
        for part in self._each():
            yield first, self.map.number[part.ids]
            first += len(part.ids)

    def _chunks(self, coder: Codec, total: int) -> Iterator[tuple[bytes, np.ndarray]]:
        done, held = 0, np.empty((0, int(np.prod(self.plan.grid))), np.int32)
        for first, ids in self._ids():
            held = np.concatenate([held, ids]) if len(held) else ids
            whole = len(held) - len(held) % RUN  # blocks of records begin at multiples of this
            for at in range(0, whole, TOGETHER):
                yield coder.encode(held[at : min(at + TOGETHER, whole)])
                if at + TOGETHER < whole:
                    self.progress(done + at + TOGETHER, total)
            done, held = done + whole, held[whole:]
            self.progress(first + len(ids), total)
        if len(held):
            yield coder.encode(held)


def _narrow_vectors(vectors: np.ndarray) -> np.ndarray:
    """Code vectors as float16 where that changes none of them, else float32."""
    with np.errstate(over="ignore"):
        half = vectors.astype(np.float16)
    return np.ascontiguousarray(
        half if np.array_equal(half.astype(np.float32), vectors) else vectors.astype(np.float32)
    )


def _check_used(used: np.ndarray, vocabulary: int) -> None:
    whole = used.ndim == 1 and used.size > 0 and used.dtype.kind in "iu"
    if not whole or not 0 <= used.min() <= used.max() < vocabulary or (np.diff(used) < 1).any():
        raise InputError(f"invalid used codes of shape {used.shape}", f"give ascending numbers below {vocabulary}")


def _check_labels(labels: Values | None, classes: tuple[str, ...]) -> None:
    if isinstance(labels, np.ndarray) and labels.dtype.kind not in "iu":
        raise InputError(f"labels have type {labels.dtype}", "give class numbers")
    if isinstance(labels, np.ndarray) and not 0 <= labels.min() <= labels.max() < len(classes):
        what = f"labels {labels.min()}..{labels.max()} do not fit {len(classes)} classes"
        raise InputError(what, f"give labels 0..{len(classes) - 1}")


def _narrow(name: str, values: Values, classes: int) -> Values:
    """Labels in the narrowest type; anything else as it is."""
    if name != "label" or not isinstance(values, np.ndarray):
        return values
    return values.astype(np.min_scalar_type(classes - 1))
