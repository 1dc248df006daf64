"""Sealing a spool: all parts are combined into a store, which appears atomically.

First the used codes are renumbered and a codec is fitted, from the histograms of the parts and a sample. Then the
images of the store are coded in ranges, one or more shards each, by any number of processes in any order. Last, shards
and columns are put together and the manifest is written. Everything happens inside the spool: a process killed at any
moment leaves a spool that can be sealed again, to the same bytes.

x.tok.spool/sealing/plan.json          what all ranges share, with codes.safetensors and tables.safetensors
x.tok.spool/sealing/00000/             a range: 00000.tiles, ..., columns.safetensors, and range.json when it is whole
x.tok.spool/sealed/                    the store before it is moved to its place

N images | V views | T codes of a record | K codes of the tokenizer
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from tilework.core.codebook import cut_synonyms
from tilework.core.config import decode
from tilework.core.errors import ConfigError, DamageError, InputError, OutputError
from tilework.core.files import locked, sha256, write, write_json
from tilework.core.sealed import read_json, write_sealed
from tilework.store.choose import FAST, RUN, SAMPLE_TOKENS, STACKED, choose_codec, runs
from tilework.store.code_map import CodeMap
from tilework.store.codec import Codec, codecs
from tilework.store.columns import (
    ColumnEntry,
    Values,
    entry_of,
    join_values,
    pack_columns,
    unpack_values,
    write_column,
    write_values,
)
from tilework.store.finish import is_done, publish
from tilework.store.manifest import File, Manifest, write_manifest
from tilework.store.shard import LARGEST_RECORDS, ShardEntry, write_shards
from tilework.store.shuffle import ImageOrder
from tilework.store.spool import Spool
from tilework.version import __version__

TOGETHER = 4096  # records coded in one call
SHARD_IMAGES = 1 << 16
HELD_CODES = 1 << 26  # gathered at a time
RECEIPT = "range.json"  # of a range, written when it is whole
SHUFFLE = 0  # seed of the order of images in a shuffled store
Progress = Callable[[int, int], None]


def _silent(done: int, total: int) -> None:
    pass


@dataclass(frozen=True)
class SealOptions:
    """How a store is made of a spool."""

    codec: str = "auto"
    cut: bool = True  # keep only codes that occur, and their vectors
    used: np.ndarray | None = field(
        default=None, compare=False
    )  # keep these codes, as another store does, whatever cut
    parts: int = 0  # expected number, if the plan does not state it
    shard_images: int = SHARD_IMAGES
    shuffle: bool = False  # put images in random order, so that shards can be read one after another

    def __post_init__(self) -> None:
        if self.shard_images < 1:
            raise InputError(f"shard_images is {self.shard_images}", "give 1 or more")

    def written(self) -> dict[str, Any]:
        """The same in JSON, for comparison."""
        used = "" if self.used is None else hashlib.sha256(np.asarray(self.used, "<i8").tobytes()).hexdigest()
        return {**asdict(self), "used": used}


def seal(
    spool: Spool,
    out: Path,
    codec: str = "auto",
    cut: bool = True,
    used: np.ndarray | None = None,
    parts: int = 0,
    shard_images: int = SHARD_IMAGES,
    progress: Progress = _silent,
    held: bool = False,
    shuffle: bool = False,
    code_ranges: Callable[[Spool, Sequence[int], Progress], None] | None = None,
) -> None:
    """Write the store and remove the spool. Options as in SealOptions.

    held: the caller has locked the spool and removes it; code_ranges: what codes the ranges, if not this process.
    """
    options = SealOptions(codec, cut, used, parts, shard_images, shuffle)
    with nullcontext() if held else locked(spool.path):
        try:
            if not is_done(spool.path, out):
                if out.exists():
                    raise OutputError(f"{out} exists", "choose another path or remove it")
                sealed = spool.path / "sealed"
                if sealed.exists():
                    shutil.rmtree(sealed)
                sealing = Sealing.prepare(spool, options)
                left = sealing.left()
                (code_ranges or _code_here)(spool, left, progress)
                sealing.assemble(sealed)
                publish(spool, sealed, out)
        except OSError as error:
            raise OutputError(f"cannot write {out}", str(error)) from error
        if not held:
            spool.remove()


def seal_share(spool: Spool, options: SealOptions, rank: int, world: int, progress: Progress = _silent) -> int:
    """Code every world-th range that is not there yet, beginning with number `rank`; `seal` ends it.

    Returns the number of ranges of this share.
    """
    with locked(spool.path, wait=True):  # the first process fits the codec
        sealing = Sealing.prepare(spool, options, shared=True)
    mine = range(rank, len(sealing.ranges), world)
    left = set(sealing.left())
    sealing.code([number for number in mine if number in left], progress)
    return len(mine)


def _code_here(spool: Spool, numbers: Sequence[int], progress: Progress) -> None:
    Sealing.open(spool).code(numbers, progress)


@dataclass(frozen=True)
class Settled:
    """What was found out about a spool before its ranges are coded."""

    options: dict[str, Any]
    codec: str
    images: int
    substituted: int
    columns: tuple[ColumnEntry, ...]
    shared: bool  # between processes that code ranges


@dataclass(frozen=True)
class CodedShard:
    """A shard of a coded range."""

    records: int
    crc: int
    file: File


class Sealing:
    """A spool whose codes and codec are settled: ranges of its images are coded in any order, then put together."""

    def __init__(self, spool: Spool, settled: Settled, codes: CodeMap, counts: np.ndarray, coder: Codec) -> None:
        self.spool, self.plan, self.settled, self.map, self.coder = spool, spool.plan, settled, codes, coder
        self.order = ImageOrder(counts, SHUFFLE if settled.options["shuffle"] else None)
        most = min(settled.options["shard_images"], max(1, LARGEST_RECORDS // self.plan.views))
        self.ranges = [range(a, min(a + most, settled.images)) for a in range(0, settled.images, most)]

    @staticmethod
    def prepare(spool: Spool, options: SealOptions, shared: bool = False) -> Sealing:
        """Settle everything, or find it settled by an earlier process with the same options."""
        root = spool.path / "sealing"
        if (root / "plan.json").is_file():
            found = Sealing.open(spool)
            if found.settled.options == options.written():
                return found
            if shared or found.settled.shared:
                what = f"{spool.path} is being sealed with other options"
                raise InputError(what, f"give the same to every process, or remove {root}")
        if root.exists():
            shutil.rmtree(root)
        return _settle(spool, options, shared)

    @staticmethod
    def open(spool: Spool) -> Sealing:
        """What another process has settled."""
        root = spool.path / "sealing"
        try:
            settled: Settled = decode(Settled, json.loads((root / "plan.json").read_bytes()))
            codes = load((root / "codes.safetensors").read_bytes())
            tables = load((root / "tables.safetensors").read_bytes())
        except FileNotFoundError as error:
            raise OutputError(f"{spool.path} is gone", "another process has sealed or removed it") from error
        except (OSError, ValueError, KeyError, ConfigError, SafetensorError) as error:
            raise DamageError(f"{root} cannot be read", f"remove it and seal again ({error})") from error
        plan = spool.plan
        length, count = int(np.prod(plan.grid)), len(codes["used"])
        coder = codecs[settled.codec].load(tables, length, count, plan.grid[-1])
        known = CodeMap(codes["used"], codes["number"], codes["kept"])
        return Sealing(spool, settled, known, codes["images"], coder)

    def left(self) -> list[int]:
        """Numbers of the ranges that are not coded yet."""
        return [number for number in range(len(self.ranges)) if not self._is_coded(number)]

    def _is_coded(self, number: int) -> bool:
        """Whether a range is whole: an earlier process may have been killed when it had moved some shards already."""
        try:
            return all(_holds(file, entry.file) for file, entry in self._coded(number))
        except DamageError:  # it is coded again, to the same bytes
            return False

    def _coded(self, number: int) -> list[tuple[Path, CodedShard]]:
        """Shards of a range and what its receipt says of them; their names follow from their number."""
        receipt = read_json(self._folder(number) / RECEIPT)
        try:
            entries: list[CodedShard] = decode(list[CodedShard], receipt["shards"])
        except (KeyError, ConfigError) as error:
            raise DamageError(f"{self._folder(number) / RECEIPT} is malformed", "seal again") from error
        return [(self._folder(number) / f"{i:05d}.tiles", entry) for i, entry in enumerate(entries)]

    def code(self, numbers: Sequence[int], progress: Progress = _silent) -> None:
        """Code some ranges. What is there already is written again, with the same bytes."""
        total, done = sum(len(self.ranges[number]) for number in numbers) * self.plan.views, 0
        for number in numbers:
            begun = done
            self._code(number, lambda count, begun=begun: progress(begun + count, total))  # type: ignore[misc]
            done += len(self.ranges[number]) * self.plan.views

    def _code(self, number: int, progress: Callable[[int], None]) -> None:
        views, images, folder = self.plan.views, self.ranges[number], self._folder(number)
        held: dict[str, list[Values]] = {}
        first, most = images.start * views, len(images) * views
        chunks = self._chunks(images, held, progress)
        shards = write_shards(self.spool.path, f"sealing/{number:05d}", chunks, most, first=first)
        columns = {name: join_values(values) for name, values in held.items()}
        write(folder / "columns.safetensors", save(pack_columns(columns)))
        found = [CodedShard(entry.records, entry.crc, _file(self.spool.path / entry.file)) for entry in shards]
        write_sealed(folder / RECEIPT, {"shards": [asdict(entry) for entry in found]})

    def _chunks(
        self, images: range, held: dict[str, list[Values]], progress: Callable[[int], None]
    ) -> Iterator[tuple[bytes, np.ndarray]]:
        """Records of a range; values of its columns are added to those held."""
        views, length = self.plan.views, int(np.prod(self.plan.grid))
        step = max(1, HELD_CODES // (views * length * RUN)) * RUN
        before = images.start * views % RUN  # blocks of records begin at multiples of this, perhaps in the range before
        lead = -(-before // views)
        ids = self._gather(images.start - lead, images.start)[0][lead * views - before :]
        done = -before
        for start in range(images.start, images.stop, step):
            more, columns = self._gather(start, min(start + step, images.stop))
            for name, values in columns.items():
                held.setdefault(name, []).append(values)
            ids = np.concatenate([ids, more]) if len(ids) else more
            last = start + step >= images.stop
            whole = len(ids) if last else len(ids) - len(ids) % RUN
            for at in range(0, whole, TOGETHER):
                records, sizes = self.coder.encode(self.map.number[ids[at : min(at + TOGETHER, whole)]])
                skipped = max(0, -done)
                yield (records[int(sizes[:skipped].sum()) :], sizes[skipped:]) if skipped else (records, sizes)
                done += len(sizes)
                progress(done)
            ids = ids[whole:]

    def _gather(self, first: int, stop: int) -> tuple[np.ndarray, dict[str, Values]]:
        """Codes of images of the store by the tokenizer's numbers, (B V, T), and their columns."""
        views, length = self.plan.views, int(np.prod(self.plan.grid))
        narrow = np.uint16 if self.plan.vocabulary <= 1 << 16 else np.int32
        ids: np.ndarray = np.empty((stop - first, views, length), narrow)
        columns: dict[str, Any] = {}
        part, local = self.order.find(np.arange(first, stop))
        by_part = np.argsort(part, kind="stable")
        edges = np.flatnonzero(np.diff(part[by_part], prepend=-1, append=-1))
        for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            rows = by_part[begin:end]
            found = self.spool.take(int(part[rows[0]]), local[rows])
            ids[rows] = found.ids.reshape(-1, views, length)
            for name, values in found.columns.items():
                if isinstance(values, np.ndarray):
                    columns.setdefault(name, np.empty((len(ids), *values.shape[1:]), values.dtype))[rows] = values
                else:
                    into = columns.setdefault(name, [None] * len(ids))
                    for row, value in zip(rows.tolist(), values, strict=True):
                        into[row] = value
        return ids.reshape(-1, length), columns

    def assemble(self, root: Path) -> None:
        """Put the coded ranges together; the manifest is written last."""
        plan, settled, used = self.plan, self.settled, self.map.used
        shards: list[ShardEntry] = []
        files: dict[str, File] = {}
        (root / "shards").mkdir(parents=True)
        for number in range(len(self.ranges)):
            for file, entry in self._coded(number):
                name = f"shards/{len(shards):05d}.tiles"
                file.rename(root / name)
                shards.append(ShardEntry(name, entry.records, entry.crc))
                files[name] = entry.file
        if tables := self.coder.tables():
            write(root / "tables.safetensors", save(tables))
        tensors = {"codebook": _narrow_vectors(self.spool.codebook[used])}
        if len(used) < plan.vocabulary:
            tensors["used"] = used.astype(np.int32)
        if self.spool.synonyms is not None and len(used) > 1:
            tensors["synonyms"] = cut_synonyms(self.spool.synonyms, self.spool.codebook, used)
        write(root / "codebook.safetensors", save(tensors))
        manifest = Manifest(
            images=settled.images,
            grid=plan.grid,
            vocabulary=len(used),
            codec=settled.codec,
            classes=plan.classes,
            shards=tuple(shards),
            columns=tuple(self._column(root, entry) for entry in settled.columns),
            views=plan.views,
            tokenizer=plan.tokenizer,
            tokenizer_codes=plan.vocabulary,
            substituted=settled.substituted,
            preprocessing=plan.preprocessing,
            frame=plan.frame,
            licence=plan.licence,
            original_bytes=plan.original_bytes,
            software=f"tilework {__version__}",
            shuffled=self.order.shuffled,
            files=files,
        )
        write_manifest(root, manifest)

    def _column(self, root: Path, entry: ColumnEntry) -> ColumnEntry:
        def values() -> Iterator[Values]:
            for number in range(len(self.ranges)):
                with safe_open(self._folder(number) / "columns.safetensors", "np") as file:
                    names = [name for name in file.keys() if name.split("/")[0] == entry.name]  # noqa: SIM118
                    found = unpack_values({name.split("/")[1]: file.get_tensor(name) for name in names})
                yield _narrow(entry.name, found, len(self.plan.classes))

        if entry.kind in ("bytes", "ragged"):
            return write_column(root, entry, values())
        write_values(root / entry.file, self.settled.images, values)
        return entry

    def _folder(self, number: int) -> Path:
        return self.spool.path / f"sealing/{number:05d}"


def _settle(spool: Spool, options: SealOptions, shared: bool) -> Sealing:
    """Count codes, check columns, choose the codec."""
    plan, parts = spool.plan, options.parts or spool.plan.parts
    _check_parts(spool, parts)
    counts, columns, images = _count(spool, parts)
    if not images.sum():
        raise InputError(f"no images in {spool.path}", "tokenize some first")
    used = options.used
    if used is None:
        used = np.flatnonzero(counts) if options.cut else np.arange(plan.vocabulary)
    _check_used(used, plan.vocabulary)
    codes = CodeMap.of(used, spool.codebook, counts > 0)
    if not spool.codebook.shape[1] and counts[~codes.kept].any():
        what = "some codes are not in the reference store, and there is no codebook to find their nearest ones"
        raise InputError(what, "give a codebook, or leave out --like")
    order = ImageOrder(images, SHUFFLE if options.shuffle else None)
    names = STACKED if len(plan.grid) == 3 else FAST
    sample, total = codes.number[_sample(spool, order)], int(images.sum())
    name, coder = choose_codec(options.codec, sample, len(used), plan.grid[-1], total * plan.views, names)
    settled = Settled(options.written(), name, total, int(counts[~codes.kept].sum()), columns, shared)
    root = spool.path / "sealing"
    tensors = {"used": codes.used, "number": codes.number, "kept": codes.kept, "images": images}
    write(root / "codes.safetensors", save(tensors))
    write(root / "tables.safetensors", save(coder.tables()))
    write_json(root / "plan.json", asdict(settled))
    return Sealing(spool, settled, codes, images, coder)


def _check_parts(spool: Spool, parts: int) -> None:
    done = set(spool.done())
    missing = [number for number in range(parts) if number not in done]
    if missing:
        shown = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        hint = "tokenize those first (tilework tokenize --shard I/N)"
        raise InputError(f"{spool.path} lacks {len(missing)} of {parts} parts ({shown})", hint)
    if extra := sorted(done - set(range(parts))):
        raise InputError(f"{spool.path} holds a part {extra[0]} beyond the {parts} of its plan", "remove it")


def _count(spool: Spool, parts: int) -> tuple[np.ndarray, tuple[ColumnEntry, ...], np.ndarray]:
    """How often each code occurs, (K,); the columns; and the number of images of each part, from their receipts."""
    counts = np.zeros(spool.plan.vocabulary, np.int64)
    images = np.zeros(parts, np.int64)
    entries: dict[str, ColumnEntry] = {}
    alike = None
    for number in range(parts):
        receipt = spool.receipt(number)
        if not receipt.images:
            continue
        counts[receipt.codes] += receipt.times
        images[number] = receipt.images
        entries = {name: entry_of(name, values) for name, values in receipt.columns.items()}
        forms = {n: (v.dtype, v.shape[1:]) for n, v in receipt.columns.items() if isinstance(v, np.ndarray)}
        if alike not in (None, (entries, forms)):
            raise InputError(f"the parts of {spool.path} have different columns", "give all the same columns")
        alike = entries, forms
        _check_labels(receipt.columns.get("label"), spool.plan.classes)
    return counts, tuple(entries.values()), images


def _sample(spool: Spool, order: ImageOrder) -> np.ndarray:
    """Codes of runs of records, evenly spread over the store, (B, T) by the tokenizer's numbers."""
    views, length = spool.plan.views, int(np.prod(spool.plan.grid))
    every = -(-len(order) * views * length // SAMPLE_TOKENS)
    records = runs(len(order) * views, every)
    wanted, row = np.unique(records // views, return_inverse=True)  # images
    part, local = order.find(wanted)
    ids: np.ndarray = np.empty((len(wanted), views, length), np.int32)
    for number in np.unique(part).tolist():
        rows = np.flatnonzero(part == number)
        ids[rows] = spool.take(number, local[rows]).ids.reshape(-1, views, length)
    return ids[row, records % views]


def _holds(path: Path, file: File) -> bool:
    return path.is_file() and path.stat().st_size == file.bytes


def _file(path: Path) -> File:
    return File(path.stat().st_size, sha256(path))


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
