"""Tar files in WebDataset's layout, read where they lie: members that share a name up to its first dot are one sample.

One pass over the headers finds every member; nothing is ever unpacked to disk. Names only name samples, sizes are
bounded before anything is read by them, and what is no plain file is refused.
"""

from __future__ import annotations

import io
import tarfile
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilework.core.errors import DamageError, InputError
from tilework.core.files import open_plain
from tilework.data.labels import Label, label_of_json

LARGEST_HEADER = 1 << 20  # bytes of one member's headers
LARGEST_MEMBER = 1 << 28  # bytes
LARGEST_LABEL = 1 << 20
MOST_MEMBERS = 1 << 26  # of all tar files together
MOST_GLOBAL = 256  # headers that hold for all members; tarfile gives each member a copy of them
PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}


@dataclass(frozen=True)
class Member:
    """A file inside a tar file."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True)
class TarIndex:
    """Samples of some tar files: names, labels as they are written, and where the wanted member of each lies."""

    tars: tuple[Path, ...]
    keys: tuple[str, ...]
    found: tuple[Label, ...]
    places: np.ndarray  # (N, 3) int64: number of the tar file, first byte, bytes
    ignored: int  # members that are neither wanted nor a label

    def read(self, index: Sequence[int]) -> Iterator[bytes]:
        """The wanted members of some samples, one at a time."""
        for i in index:
            tar, offset, size = self.places[i].tolist()
            yield read_at(self.tars[tar], offset, size)


def read_at(path: Path, offset: int, size: int) -> bytes:
    """Some bytes of a file."""
    try:
        with open_plain(path) as file:
            file.seek(offset)
            data = file.read(size)
    except OSError as error:
        raise InputError(f"{path} cannot be read", str(error)) from error
    if len(data) < size:
        raise DamageError(f"{path} is shorter than it was", "leave it alone while it is read")
    return data


def index_tars(tars: Sequence[Path], wanted: Sequence[str]) -> TarIndex:
    """All samples that have a member with one of the wanted endings, in the order of the files."""
    keys: list[str] = []
    found: list[Label] = []
    places, ignored, members = array("q"), 0, 0
    counts = []
    for number, path in enumerate(tars):
        before = len(keys)
        for key, parts in _samples(path):
            members += len(parts)
            if members > MOST_MEMBERS:
                raise InputError(f"more than {MOST_MEMBERS} files in {path}", "give fewer tar files at a time")
            mine = [part for ending, part in parts.items() if ending.lower() in wanted]
            if len(mine) > 1:
                raise InputError(f"{path} has {len(mine)} files for '{key}'", f"one of {', '.join(wanted)} is needed")
            ignored += len(parts) - len(mine) - len(parts.keys() & {"cls", "json"})
            if mine:
                keys.append(key)
                found.append(_label(path, parts))
                places.extend((number, mine[0].offset, mine[0].size))
        counts.append(len(keys) - before)
    if len(set(keys)) < len(keys):  # numbered anew in every file, as some writers do
        names = [path.stem for path, count in zip(tars, counts, strict=True) for _ in range(count)]
        keys = [f"{name}/{key}" for name, key in zip(names, keys, strict=True)]
        seen: set[str] = set()
        for key in keys:
            if key in seen:
                raise InputError(f"'{key}' names two samples", "their files must follow each other, each name once")
            seen.add(key)
    return TarIndex(tuple(tars), tuple(keys), tuple(found), np.array(places, np.int64).reshape(-1, 3), ignored)


def _samples(path: Path) -> Iterator[tuple[str, dict[str, Member]]]:
    """Members that follow each other and share a name up to the first dot of its last part, by what comes after."""
    key, parts = "", dict[str, Member]()
    for member in walk(path):
        folder, slash, name = member.name.rpartition("/")
        stem, _, ending = name.partition(".")
        if not stem or not ending:
            continue  # hidden, or of no kind
        if folder + slash + stem != key:
            if parts:
                yield key, parts
            key, parts = folder + slash + stem, {}
        if ending in parts:
            raise InputError(f"{path} has '{member.name}' twice", "each name may occur once")
        parts[ending] = member
    if parts:
        yield key, parts


def _label(path: Path, parts: dict[str, Member]) -> Label:
    """`.cls` holds the number of a class; else `.json` may have a number or name under "label"."""
    member = parts.get("cls") or parts.get("json")
    if member is None:
        return None
    if member.size > LARGEST_LABEL:
        raise InputError(f"{member.name} in {path} has {member.size} bytes", f"at most {LARGEST_LABEL} can be a label")
    data = read_at(path, member.offset, member.size)
    try:
        return int(data) if "cls" in parts else label_of_json(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{member.name} in {path} holds no label", "the number of a class is needed") from error


def walk(path: Path) -> Iterator[Member]:
    """Plain files of a tar file, by its headers alone; it must have an end mark, and no tricks."""
    try:
        with open_plain(path) as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(0)
            start = file.read(8)
            if kind := next((kind for magic, kind in PACKED.items() if start.startswith(magic)), ""):
                raise InputError(f"{path} is packed with {kind}", "unpack it to a plain tar file, to be read in place")
            file.seek(0)
            headers: Any = _Headers(file)
            tar = tarfile.open(fileobj=headers, mode="r:")  # noqa: SIM115 (there is nothing to close)
            while (info := tar.next()) is not None:
                if len(tar.pax_headers) > MOST_GLOBAL:
                    what = f"{path} has {len(tar.pax_headers)} global headers"
                    raise InputError(what, f"at most {MOST_GLOBAL} are read")
                if not info.isdir():
                    yield _member(path, info, size)
                tar.members.clear()  # type: ignore[attr-defined]
                headers.left = LARGEST_HEADER
            file.seek(tar.offset)
            if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise DamageError(f"{path} is cut short or damaged at byte {tar.offset}", "restore it")
    except (tarfile.TarError, ValueError, OverflowError, EOFError, RecursionError) as error:
        raise DamageError(f"{path} is no tar file, or a damaged one", str(error) or type(error).__name__) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read", str(error)) from error


def _member(path: Path, info: tarfile.TarInfo, size: int) -> Member:
    name = info.name.removeprefix("./")
    if not info.isreg() or info.issparse():
        raise InputError(f"'{name}' in {path} is no plain file", "links, devices and sparse files are not read")
    if name.startswith("/") or ".." in name.split("/") or not name.isprintable():
        raise InputError(f"{path} has a file named {name!r}", "names must be plain and stay below the top")
    if not 0 <= info.size <= LARGEST_MEMBER:
        raise InputError(f"'{name}' in {path} has {info.size} bytes", f"at most {LARGEST_MEMBER} are read")
    if info.offset_data + info.size > size:
        raise DamageError(f"{path} ends inside '{name}'", "it is cut short: restore it")
    return Member(name, info.offset_data, info.size)


class _Headers:
    """A file from which only so much can be read for one member's headers, whatever they say."""

    def __init__(self, file: Any) -> None:
        self.file, self.left = file, LARGEST_HEADER
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        self.left -= size
        if size < 0 or self.left < 0:
            raise tarfile.ReadError(f"a header of more than {LARGEST_HEADER} bytes")
        data: bytes = self.file.read(size)
        return data
