"""Output at a URL: written to this machine, uploaded when it is whole, with the file that makes it readable last.

TILEWORK_CACHE/out/ab12.../NAME    what is not uploaded yet; a command that was stopped goes on with it
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tilework.core.errors import ConfigError, OutputError
from tilework.core.files import locked, make_directory
from tilework.core.location import KINDS, Url
from tilework.store.remote import Missing, bucket_errors, cache_directory, file_system, in_bucket, try_often

POINTERS = ("best", "latest")  # files of a folder of checkpoints that name one of them
WRITABLE = ("s3", "gs", "memory")


def place_of(url: Url) -> Path:
    """Where output is written before it is uploaded."""
    if url.scheme not in WRITABLE:
        raise ConfigError(f"{url} cannot be written", f"give a path, or a URL of {', '.join(WRITABLE)}")
    digest = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]
    return cache_directory() / "out" / digest / (url.rstrip("/").rpartition("/")[2] or "out")


@contextmanager
def output(url: Url) -> Iterator[Path]:
    """A path to write to; what is there at the end is uploaded if the block succeeds.

    What is there at the start is whole, and lacks only its upload: an earlier command was stopped.
    """
    place = place_of(url)
    if any(_exists(url, name) for name in KINDS):
        raise OutputError(f"{url} exists", "choose another --out or remove it")
    make_directory(place.parent)
    with locked(place.parent):
        yield place
        above = Url(url.rstrip("/").rpartition("/")[0])
        for beside in sorted(place.parent.iterdir()):  # such as a list of broken images
            if beside.is_file():
                put(beside, above, beside.name)
        upload(place, url)
        shutil.rmtree(place.parent, ignore_errors=True)


def upload(folder: Path, url: Url) -> None:
    """All files below a folder; the one that makes it readable is the last: what is cut short is not a store."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    for name in sorted(names, key=lambda name: name in KINDS):
        put(folder / name, url, name)


def put(file: Path, url: Url, name: str) -> None:
    """One file, again while that can help."""
    files, where = file_system(url), f"{url.rstrip('/')}/{name}"

    def attempt(begun: float) -> None:
        with bucket_errors(where, "written"):
            files.put_file(str(file), in_bucket(url, name))

    try:
        try_often(where, attempt, "written")
    except Missing as error:
        raise OutputError(
            f"{where} cannot be written", "there is no such bucket; make it, or check the address"
        ) from error


def _exists(url: Url, name: str) -> bool:
    found = []

    def attempt(begun: float) -> None:
        with bucket_errors(f"{url}/{name}"):
            found.append(bool(file_system(url).exists(in_bucket(url, name))))

    try:
        try_often(f"{url.rstrip('/')}/{name}", attempt)
    except Missing:
        return False
    return found[-1]


class Mirror:
    """A run directory whose copy at a URL is kept up to date: every file before the pointer that makes it count."""

    def __init__(self, url: Url) -> None:
        self.url, self.local = url, place_of(url)
        self._sent: dict[str, tuple[int, int]] = {}  # size and time of what was uploaded

    def pull(self) -> None:
        """Take over what lies at the URL; where nothing does, what is here stays."""
        if not _exists(self.url, f"checkpoints/{POINTERS[-1]}"):
            return
        files, aside = file_system(self.url), self.local.with_name(f".{self.local.name}.tmp")
        shutil.rmtree(aside, ignore_errors=True)
        root = in_bucket(self.url, "")

        def attempt(begun: float) -> None:
            with bucket_errors(str(self.url)):
                for path in files.find(root):
                    to = aside / path.removeprefix(root)
                    make_directory(to.parent)
                    files.get_file(path, str(to))

        try_often(str(self.url), attempt)
        shutil.rmtree(self.local, ignore_errors=True)
        aside.rename(self.local)
        self._sent = self._here()

    def push(self) -> None:
        """Upload what is new, pointers last, then remove checkpoints that are no longer kept."""
        here = self._here()
        for name in sorted(here, key=lambda name: (POINTERS.index(Path(name).name) if _points(name) else -1, name)):
            if self._sent.get(name) != here[name]:
                put(self.local / name, self.url, name)
                self._sent[name] = here[name]
        gone = [name for name in self._sent if name not in here]
        if gone:
            with bucket_errors(str(self.url), "written"):
                file_system(self.url).rm([in_bucket(self.url, name) for name in gone])
            self._sent = {name: sent for name, sent in self._sent.items() if name in here}

    def _here(self) -> dict[str, tuple[int, int]]:
        """Size and time of every file, but of those that are being written."""
        return {
            path.relative_to(self.local).as_posix(): (path.stat().st_size, path.stat().st_mtime_ns)
            for path in self.local.rglob("*")
            if path.is_file() and not any(part.startswith(".") for part in path.relative_to(self.local).parts)
        }


def _points(name: str) -> bool:
    return name in (f"checkpoints/{pointer}" for pointer in POINTERS)
