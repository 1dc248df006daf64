"""Spool: a directory of unfinished parts of a store. Any number of processes fill it, in any order.

A part holds the packed codes of some images and their columns, in one file that is written atomically; writing it
again gives the same bytes. `seal` combines all parts into a store.

x.tok.spool/plan.json                settings that all parts share
x.tok.spool/codebook.safetensors     code vectors of the tokenizer
x.tok.spool/parts/00000.part         a shard: packed codes, then one record with their histogram and the columns

B images | V views | H, W code grid | K codes | C code dim
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from math import prod
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from tilework.core.codebook import are_synonyms
from tilework.core.config import decode
from tilework.core.errors import ConfigError, DamageError, InputError, OutputError
from tilework.core.files import write, write_json
from tilework.store.codec import check_codes
from tilework.store.columns import Values, entry_of, pack_columns, take_values, unpack_columns
from tilework.store.manifest import Frame, largest_length, with_frame
from tilework.store.packed import Packed
from tilework.store.shard import Shard, write_shard

LARGEST_VOCABULARY = 1 << 20
CODES, TIMES = "codes", "times"  # tensors of a part beside its columns, whose names have a /
PARTS, REMOVED = "parts", "removed"  # the latter while a spool is being removed
MARK = "writer"  # a file in spools of StoreWriter
LAST = ("codebook.safetensors", "plan.json", "done")  # removed in this order, after all else


@dataclass(frozen=True)
class Plan:
    """Settings that all parts of a store share."""

    vocabulary: int
    grid: tuple[int, ...]
    classes: tuple[str, ...]
    views: int = 1
    tokenizer: dict[str, str] = field(default_factory=dict)
    preprocessing: str = ""
    frame: Frame = "cover"
    licence: str = ""
    parts: int = 0  # number of parts of the store; 0: given when it is sealed
    source: str = ""  # hash of the list of images: another list needs another spool
    original_bytes: int = 0  # of the image files; 0: not known


@dataclass(frozen=True)
class Part:
    """Codes of some images and their columns."""

    ids: np.ndarray  # (B V, T) int32
    columns: dict[str, Values]


@dataclass(frozen=True)
class Receipt:
    """What a part holds, without its codes."""

    images: int
    codes: np.ndarray  # (k,) those that occur
    times: np.ndarray  # (k,) how often
    columns: dict[str, Values]


def spool_of(store: Path) -> Path:
    """Spool directory of a store."""
    return store.with_name(f"{store.name}.spool")


class Spool:
    """A directory of parts."""

    def __init__(self, path: Path, plan: Plan, codebook: np.ndarray, synonyms: np.ndarray | None = None) -> None:
        self.path, self.plan, self.codebook, self.synonyms = path, plan, codebook, synonyms
        self._packed = Packed(prod(plan.grid), plan.vocabulary)

    @staticmethod
    def create(path: Path, plan: Plan, codebook: np.ndarray, synonyms: np.ndarray | None = None) -> Spool:
        """A new spool, or the existing one if it has the same plan. codebook: (K, C)."""
        if codebook.ndim != 2 or not len(codebook) or len(codebook) != plan.vocabulary:
            raise InputError(f"the codebook has shape {codebook.shape} for {plan.vocabulary} codes", "give (K, C)")
        if plan.vocabulary > LARGEST_VOCABULARY:
            raise InputError(f"{plan.vocabulary} codes", f"at most {LARGEST_VOCABULARY} can be stored")
        if prod(plan.grid) > (most := largest_length(plan.grid)):
            raise InputError(f"the code grid is {plan.grid}", f"at most {most} codes per image can be stored")
        if len(plan.grid) not in (1, 2, 3) or min(plan.grid) < 1 or plan.views < 1:
            what = f"the code grid is {plan.grid}, with {plan.views} views"
            raise InputError(what, "one to three positive dimensions and at least one view are needed")
        vectors = _vectors(codebook)
        if (path / "plan.json").is_file() and (path / "codebook.safetensors").is_file():
            found = Spool.open(path)
            before = replace(found.plan, original_bytes=plan.original_bytes)  # a file may have been repaired since
            if before != plan or not np.array_equal(found.codebook, vectors):
                what = f"{path} holds codes of other images, or of another tokenizer or settings"
                raise OutputError(what, "remove it or choose another output")
            return found
        if synonyms is not None and not are_synonyms(synonyms, len(codebook)):
            raise InputError("synonyms that do not fit the codebook", "name other codes of it for each, as int32")
        tensors = {"codebook": vectors}
        tensors |= {} if synonyms is None else {"synonyms": np.ascontiguousarray(synonyms)}
        write(path / "codebook.safetensors", save(tensors))
        write_json(path / "plan.json", asdict(plan))
        return Spool.open(path)

    @staticmethod
    def open(path: Path) -> Spool:
        """The spool of a directory."""
        try:
            plan: Plan = decode(Plan, with_frame(json.loads((path / "plan.json").read_bytes())))
            tensors = load((path / "codebook.safetensors").read_bytes())
            codebook, synonyms = tensors["codebook"], tensors.get("synonyms")
        except FileNotFoundError as error:
            raise InputError(f"{path} is not a spool", f"it has no {Path(error.filename).name}") from error
        except (OSError, ValueError, KeyError, ConfigError, SafetensorError) as error:
            raise DamageError(f"{path} cannot be read", f"remove it and begin again ({error})") from error
        return Spool(path, plan, codebook, synonyms)

    def put(self, number: int, ids: np.ndarray, columns: Mapping[str, Values]) -> None:
        """Write a part. ids: (B, *grid), or (B, V, *grid) with several views; columns: B values each."""
        plan = self.plan
        if not 0 <= number < 1 << 32:
            raise InputError(f"part number {number} is negative", "count parts from 0")
        if not (self.path / "plan.json").is_file():
            raise OutputError(f"{self.path} is gone", "another process has sealed or removed it")
        shape = (plan.views, *plan.grid) if plan.views > 1 else plan.grid
        if ids.shape[1:] != shape or ids.dtype.kind not in "iu":
            raise InputError(f"ids of shape {ids.shape} and type {ids.dtype}", f"(B, {str(shape)[1:]} integers needed")
        for name, values in columns.items():
            entry_of(name, values)
            if len(values) != len(ids):
                raise InputError(f"{len(values)} values of column '{name}' for {len(ids)} images", "give one each")
        flat = ids.reshape(len(ids) * plan.views, prod(plan.grid))
        check_codes(flat, plan.vocabulary)
        records, sizes = self._packed.encode(flat)
        found, times = np.unique(flat, return_counts=True)
        tensors = pack_columns(columns) | {CODES: found.astype(np.int32), TIMES: times.astype(np.int64)}
        last = save(tensors)
        write_shard(self._file(number), records + last, np.append(sizes, len(last)), number)

    def get(self, number: int) -> Part:
        """Read a part and verify its checksums."""
        return self.take(number, None)

    def take(self, number: int, local: np.ndarray | None) -> Part:
        """Some images of a part, verified, or all of them. local: (B,) their numbers in it."""
        shard = Shard(self._file(number), number)
        views, count = self.plan.views, max(0, len(shard) - 1)
        rows = np.arange(count) if local is None else (local[:, None] * views + np.arange(views)).ravel()
        *codes, last = shard.records(np.append(rows, count)) if len(shard) else [b""]
        size = self._packed.size
        starts, sizes = np.arange(len(codes)) * size, np.array([len(record) for record in codes], np.int64)
        ids = self._packed.decode(np.frombuffer(b"".join(codes), np.uint8), starts, sizes)
        columns, _ = self._last(number, last)
        return Part(ids, columns if local is None else {n: take_values(v, local) for n, v in columns.items()})

    def receipt(self, number: int) -> Receipt:
        """What a part holds, without its codes."""
        shard = Shard(self._file(number), number)
        count = max(0, len(shard) - 1)
        (last,) = shard.records(np.array([count])) if len(shard) else [b""]
        columns, counted = self._last(number, last)
        codes, times = counted or np.unique(self.get(number).ids, return_counts=True)  # of an earlier version
        return Receipt(count // self.plan.views, codes, times, columns)

    def _last(self, number: int, data: bytes) -> tuple[dict[str, Values], tuple[np.ndarray, np.ndarray] | None]:
        """Columns of a part, and which codes it has how often, from its last record."""
        try:
            tensors = load(data)
            counted = (tensors.pop(CODES), tensors.pop(TIMES)) if CODES in tensors else None
            if counted is not None:
                check_codes(counted[0][None], self.plan.vocabulary)
            return unpack_columns(tensors), counted
        except (SafetensorError, KeyError, IndexError, ValueError) as error:
            what = f"part {self._file(number).name} is damaged"
            raise DamageError(what, f"remove it and tokenize again ({error})") from error

    def done(self) -> list[int]:
        """Numbers of the finished parts."""
        return sorted(int(path.stem) for path in (self.path / PARTS).glob("*.part") if path.stem.isdigit())

    def remove(self) -> None:
        """Remove the spool: parts first, at one stroke, the mark of a finished store last."""
        try:
            if not (self.path / REMOVED).exists():  # of a removal cut short
                with suppress(FileNotFoundError):
                    (self.path / PARTS).rename(self.path / REMOVED)
            for child in self.path.iterdir():
                if child.name not in LAST:
                    shutil.rmtree(child) if child.is_dir() else child.unlink()
            for name in LAST:
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()
        except OSError as error:
            raise OutputError(f"cannot remove {self.path}", str(error)) from error

    def _file(self, number: int) -> Path:
        return self.path / f"{PARTS}/{number:05d}.part"


def _vectors(codebook: np.ndarray) -> np.ndarray:
    """Code vectors as they are stored, float32; what would become infinite or lose a part is refused."""
    if codebook.dtype.kind not in "biuf":
        raise InputError(f"the codebook holds {codebook.dtype}", "real numbers are needed")
    try:
        with np.errstate(over="raise", invalid="ignore"):
            return np.ascontiguousarray(codebook, np.float32)
    except FloatingPointError as error:
        raise InputError("the codebook holds numbers that are too large", "at most 3.4e38 can be stored") from error
