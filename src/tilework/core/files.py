"""Atomic writes: to a temporary name, flushed to disk, then renamed; directory locks; checksums."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import shutil
import stat
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from unicodedata import category

import google_crc32c

try:
    import fcntl
except ImportError:  # Windows: no locks
    fcntl = None  # type: ignore[assignment]

from tilework.core.errors import InUseError, OutputError


def has_control(name: str) -> bool:
    """Whether a name holds a line break or another control character; odd spaces and joiners are none."""
    return not name.isprintable() and any(category(letter) in ("Cc", "Zl", "Zp") for letter in name)


def crc32c(data: bytes | memoryview) -> int:
    """CRC32C (Castagnoli) of a byte string."""
    return int(google_crc32c.value(bytes(data)))


def open_plain(path: Path) -> BinaryIO:
    """A file for reading; pipes and devices, which would be waited for or never end, raise OSError."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path.open("rb")


def read_plain(path: Path, most: int | None = None) -> bytes:
    """All bytes of a file that is no pipe or device, and has at most so many."""
    with open_plain(path) as file:
        if most is not None and os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"larger than {most:,} bytes", str(path))
        return file.read()


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open_plain(path) as file:
        return sha256_of(file)


def sha256_of(file: BinaryIO) -> str:
    """SHA-256 of what is left of an open file, in hexadecimal."""
    digest = hashlib.sha256()
    while chunk := file.read(1 << 18):  # stays in the cache
        digest.update(chunk)
    return digest.hexdigest()


def write(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a file atomically, from its bytes or from portions of them."""
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        _sync_directory(path.parent)
    except BaseException as error:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OutputError(f"cannot write {path}", str(error)) from error
        raise


def write_json(path: Path, value: Any) -> None:
    """Write a value as readable JSON, atomically."""
    write(path, (json.dumps(value, indent=2) + "\n").encode())


def is_free(path: Path) -> bool:
    """Whether a directory is absent or empty, apart from interrupted writes; an error if it cannot be created."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not there.is_dir():
        raise OutputError(f"cannot make the directory {path}", f"{there} is a file; choose another folder")
    if not os.access(there, os.W_OK):
        raise OutputError(f"cannot write {path}", f"no permission in {there}; choose another folder")
    return there != path or all(p.name.startswith(".") and p.name.endswith(".tmp") for p in path.iterdir())


def make_directory(path: Path) -> None:
    """Make a directory and its parents."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make {path}", str(error)) from error


@contextmanager
def new_directory(path: Path, replace: bool = False) -> Iterator[Path]:
    """A temporary directory to fill, renamed to `path` if the block succeeds and removed otherwise."""
    if path.exists() and not replace:
        raise OutputError(f"{path} exists", "choose another folder or remove it")
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        aside.mkdir(parents=True)
        yield aside
        sync_tree(aside)
        _take_name(aside, path, replace)
        _sync_directory(path.parent)
    except OSError as error:
        raise OutputError(f"cannot write {path}", str(error)) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def remove_unfinished(folder: Path, name: str = "") -> None:
    """Remove what killed processes have left of files and directories that they were writing, while none writes them.

    name: of the one file or directory whose rests to remove, instead of all of the folder.
    """
    for aside in folder.glob(f".{glob.escape(name)}.*.tmp" if name else ".*.tmp"):
        shutil.rmtree(aside) if aside.is_dir() else aside.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, wait: bool = False) -> Iterator[None]:
    """Lock a directory against other processes; the lock ends with the process.

    wait: for another process to release it, instead of raising InUseError.
    """
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise OutputError(f"cannot use {path}", str(error)) from error
    try:
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise InUseError(f"{path} is in use by another process", "wait for it to end") from error
        yield
    finally:
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)  # a process forked meanwhile has the handle too
        os.close(handle)


def _take_name(aside: Path, path: Path, replace: bool) -> None:
    """Rename a directory; an old one is moved away first and restored on failure."""
    if not path.exists():
        aside.rename(path)
        return
    if not replace:
        raise OutputError(f"{path} exists", "another process made it meanwhile; choose another folder or remove it")
    old = aside.with_suffix(".old")
    path.rename(old)
    try:
        aside.rename(path)
    except OSError:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def sync_tree(path: Path, below: bool = True) -> None:
    """Flush a directory to disk, and everything below it."""
    for file in sorted(path.rglob("*")) if below else ():
        _sync(file)
    _sync_directory(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_directory(path: Path) -> None:
    if os.name == "posix":  # Windows cannot open a directory
        _sync(path)
