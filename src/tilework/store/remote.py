"""Stores at a URL: files are fetched when first needed, checked, and kept in a cache of limited size.

TILEWORK_CACHE/ab/ab12...    a file, named by its SHA-256, so that names in a manifest never become local paths. The
                             least recently used is removed first. Any number of processes share the directory; a
                             file that one has open or mapped stays readable when another removes it.

http and https need only Python; s3, gs and memory use fsspec, without its caches.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from http.client import HTTPException
from ipaddress import ip_address
from pathlib import Path
from time import monotonic, sleep
from typing import Any, BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener
from uuid import uuid4

from tilework.core.errors import (
    ConfigError,
    DamageError,
    InputError,
    InUseError,
    MachineError,
    OutputError,
    TileworkError,
)
from tilework.core.files import locked, make_directory, sha256_of
from tilework.core.location import Url
from tilework.store.manifest import LARGEST, NAME, File, parse
from tilework.version import __version__

CACHE, CACHE_BYTES = "TILEWORK_CACHE", "TILEWORK_CACHE_BYTES"  # environment variables
USUAL_BYTES = 20_000_000_000
ATTEMPTS = 5
WRONG = 2  # attempts at a file that arrives complete but with another hash
PAUSE = 0.5  # seconds after the first attempt, doubled after each further one
STALL = 30.0  # seconds without data before an attempt ends
PATIENCE, SLOWEST = 300.0, 1 << 16  # time limit of a file: seconds, plus one for so many bytes
CHUNK = 1 << 20
RANGE = 1 << 23  # bytes of a request to a bucket
AGAIN = (408, 425, 429)  # status codes worth a retry, besides 500 and above
NETWORK = {"HTTPClientError", "ConnectionError", "ClientConnectionError", "ClientPayloadError"}  # of bucket clients
KEPT = re.compile(r"[0-9a-f]{64}|\.[0-9a-f]{64}\.[0-9a-f]{8}\.tmp")


class Missing(Exception):
    """The server has no such file."""


class _Wrong(Exception):
    """A file with another size or hash than in the manifest."""


class Remote:
    """The files of a store at a URL. The manifest is never cached."""

    def __init__(self, url: Url) -> None:
        self.url = url
        text = bytearray()

        def attempt(begun: float) -> None:
            text.clear()
            for chunk in _timed(_read(self.url, NAME), begun):
                text.extend(chunk)
                if len(text) > LARGEST:
                    raise DamageError(f"{url}/{NAME} is larger than a manifest can be", "restore it")

        try:
            try_often(self._at(NAME), attempt)
        except Missing as error:
            raise InputError(f"{url} is not a token store", f"it has no {NAME}; check the address") from error
        self.manifest, self.manifest_bytes = parse(bytes(text), url.rstrip("/")), len(text)

    def _at(self, name: str) -> str:
        return f"{self.url.rstrip('/')}/{name}"

    def open(self, name: str) -> BinaryIO:
        """A file of the store, fetched if it is not in the cache, and verified against its hash."""
        file = self.manifest.files.get(name)
        if file is None:
            raise DamageError(f"{self.url} has no {name}", "restore it")
        if not re.fullmatch("[0-9a-f]{64}", file.sha256) or file.bytes < 0:
            raise DamageError(f"the manifest of {self.url} is malformed", f"invalid size or hash of {name}")
        root = cache_directory()
        cached = root / file.sha256[:2] / file.sha256
        make_directory(cached.parent)
        try:
            found = _cached(cached, file)
            if found is None:
                with locked(cached.parent, wait=True):  # a process that waited finds the file in the cache
                    found = _cached(cached, file) or self._fetch(name, file, root, cached)
            return found
        except Missing as error:
            raise DamageError(f"{self.url} has no {name}", "restore it") from error
        except OSError as error:
            raise OutputError(f"cannot use the cache {root}", f"{error}; set {CACHE} to another directory") from error

    def _fetch(self, name: str, file: File, root: Path, cached: Path) -> BinaryIO:
        """Download a file to a temporary name, then move it into the cache."""
        aside = cached.with_name(f".{cached.name}.{uuid4().hex[:8]}.tmp")
        try:
            _reserve(root, file.bytes, aside)
            with aside.open("r+b") as sink:
                try_often(self._at(name), lambda begun: self._receive(name, file, sink, begun))
            found = aside.open("rb")  # before the name can be taken away again
            aside.replace(cached)
            return found
        finally:
            with suppress(OSError):
                aside.unlink(missing_ok=True)

    def _receive(self, name: str, file: File, sink: BinaryIO, begun: float) -> None:
        """One attempt to download a file, of at most the size in the manifest."""
        digest, count = hashlib.sha256(), 0
        sink.seek(0)
        for chunk in _timed(_read(self.url, name), begun):
            count += len(chunk)
            if count > file.bytes:
                raise _Wrong(f"it has more than {file.bytes} bytes")
            digest.update(chunk)
            try:
                sink.write(chunk)
            except OSError as error:  # not the network's
                raise OutputError(f"cannot write the cache {cache_directory()}", str(error)) from error
        if count < file.bytes and self.url.scheme in ("http", "https"):  # a bucket says how many there are
            raise ConnectionError(f"{count} of {file.bytes} bytes")
        if digest.hexdigest() != file.sha256:
            raise _Wrong("it differs from its hash in the manifest")


def try_often(where: str, attempt: Callable[[float], None], done: str = "read") -> None:
    """Retry an attempt while that can help. attempt: called with the start time of the first; done: read or written."""
    begun = monotonic()
    for number in range(1, ATTEMPTS + 1):
        try:
            return attempt(begun)
        except _Wrong as error:
            if number >= WRONG:
                raise DamageError(f"{where} is damaged", f"{error}; restore it") from error
        except (OSError, HTTPException) as error:
            reason = _reason(error, where, done)
            if number == ATTEMPTS or monotonic() - begun > PATIENCE:
                raise InputError(f"{where} cannot be {done}", f"{reason}, {number} times; try later") from error
        sleep(PAUSE * 2 ** (number - 1))
    raise AssertionError("unreachable")


def cache_directory() -> Path:
    """Directory of the cache."""
    told = os.environ.get(CACHE)
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tilework"
    return Path(told) if told else usual


def cache_bytes() -> int:
    """Size limit of the cache."""
    told = os.environ.get(CACHE_BYTES) or str(USUAL_BYTES)
    if not told.isdecimal():
        raise ConfigError(f"{CACHE_BYTES} is '{told}'", "give a number of bytes")
    return int(told)


def _cached(cached: Path, file: File) -> BinaryIO | None:
    """A file of the cache if it is present and intact; marks it as used."""
    try:
        found = cached.open("rb")
    except FileNotFoundError:
        return None
    if os.fstat(found.fileno()).st_size != file.bytes or sha256_of(found) != file.sha256:
        found.close()
        return None
    found.seek(0)
    with suppress(OSError):  # gone meanwhile, or another user's
        os.utime(cached)
    return found


def _reserve(root: Path, size: int, aside: Path) -> None:
    """Create an empty file of a given size, after making room in the cache."""
    limit, begun = cache_bytes(), monotonic()
    if size > limit:
        raise OutputError(f"a file of {size} bytes does not fit a cache of {limit} bytes", f"raise {CACHE_BYTES}")
    while True:
        with locked(root, wait=True):
            if _free(root, limit, size):
                with aside.open("wb") as file:
                    file.truncate(size)  # takes no room on the disk yet, but counts from now on
                return
        if monotonic() - begun > PATIENCE:
            raise OutputError(f"the cache {root} is full of downloads in progress", f"raise {CACHE_BYTES}")
        sleep(0.05)


def _free(root: Path, limit: int, size: int) -> bool:
    """Remove least recently used files until there is room; returns whether there is."""
    kept = []
    for path in root.glob("[0-9a-f][0-9a-f]/*"):
        with suppress(FileNotFoundError):  # fetched or replaced meanwhile
            if KEPT.fullmatch(path.name):
                kept.append((path.stat().st_mtime_ns, path.stat().st_size, path))
    free = limit - sum(held for _, held, _ in kept)
    for _, held, path in sorted(kept):
        if free >= size:
            break
        try:
            if path.name.startswith("."):
                with locked(path.parent):  # not locked: its process was killed
                    path.unlink(missing_ok=True)
            else:
                path.unlink(missing_ok=True)
            free += held
        except InUseError:
            continue
    return free >= size


def _timed(chunks: Iterator[bytes], begun: float) -> Iterator[bytes]:
    """The same chunks; raises TimeoutError if they come too slowly for too long."""
    count = 0
    for chunk in chunks:
        count += len(chunk)
        if monotonic() - begun > PATIENCE + count / SLOWEST:
            raise TimeoutError("it came too slowly")
        yield chunk


def _read(url: Url, name: str) -> Iterator[bytes]:
    """A file of a store in chunks. Raises OSError and HTTPException."""
    return _read_http(url, name) if url.scheme in ("http", "https") else _read_bucket(url, name)


def _read_http(url: Url, name: str) -> Iterator[bytes]:
    whole = f"{quote(url.rstrip('/'), safe=':/%[]~!$&()*+,;=')}/{quote(name)}"
    request = Request(whole, headers={"User-Agent": f"tilework/{__version__}"})
    with _opener().open(request, timeout=STALL) as answer:
        while chunk := answer.read1(CHUNK):  # what has come, without waiting for more
            yield chunk
        if answer.length:
            raise ConnectionError("the answer was cut short")


class _Redirects(HTTPRedirectHandler):
    """Follows redirects, but never from https to another scheme, nor from the internet into this network."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        if urlsplit(newurl).scheme not in ("https", req.type) or (_is_inner(newurl) and not _is_inner(req.full_url)):
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _is_inner(url: str) -> bool:
    """Whether a host is this machine or in a private network; one without an address here is left to the proxy."""
    try:
        found = socket.getaddrinfo(urlsplit(url).hostname, None)
    except (OSError, UnicodeError):
        return False
    return any(not ip_address(str(entry[4][0]).partition("%")[0]).is_global for entry in found)


@cache
def _opener() -> OpenerDirector:
    return build_opener(_Redirects)


def file_system(url: Url) -> Any:
    """The files of a bucket, by fsspec, which remembers nothing about them."""
    try:
        import fsspec

        return fsspec.filesystem(url.scheme, **({"use_listings_cache": False} if url.scheme == "s3" else {}))
    except ImportError as error:
        extra = "gs" if url.scheme == "gs" else "s3"  # fsspec itself comes with torch
        raise MachineError(
            f"{url.scheme}:// needs a package that is not installed", f"pip install 'tilework[{extra}]'"
        ) from error


def in_bucket(url: Url, name: str) -> str:
    """Path of a file below a URL, as fsspec takes it."""
    return f"{url.partition('://')[2].rstrip('/')}/{name}"


@contextmanager
def bucket_errors(where: str, done: str = "read") -> Iterator[None]:
    """Errors of the client of a bucket as OSError where a retry may help, else as ours. done: read or written."""
    try:
        yield
    except (OSError, GeneratorExit, TileworkError):
        raise
    except Exception as error:  # no credentials, no such region, ...
        said = next(iter(str(error).splitlines()), "")
        if {kind.__name__ for kind in type(error).__mro__} & NETWORK:
            raise ConnectionError(said) from error
        raise InputError(f"{where} cannot be {done}", f"{type(error).__name__}: {said}") from error


def _read_bucket(url: Url, name: str) -> Iterator[bytes]:
    files, path = file_system(url), in_bucket(url, name)
    with bucket_errors(f"{url}/{name}"):
        size = int(files.info(path)["size"])
        for start in range(0, size, RANGE):
            yield files.cat_file(path, start=start, end=min(start + RANGE, size))


def _reason(error: OSError | HTTPException, where: str, done: str) -> str:
    """Why an attempt failed; raises an error that a retry cannot help. done: what was tried: read or written."""
    if isinstance(error, HTTPError):
        error.close()
        if error.code in (404, 410):
            raise Missing(where) from error
        if error.code in (401, 403):
            raise InputError(f"{where} may not be read", f"the server answers {error.code}; ask its owner") from error
        if error.code < 500 and error.code not in AGAIN:
            raise InputError(f"{where} cannot be read", f"the server answers {error.code}") from error
        return f"the server answers {error.code}"
    cause = error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
    if isinstance(cause, FileNotFoundError):
        raise Missing(where) from error
    if isinstance(cause, PermissionError):
        said = f" ({cause})" if str(cause) else ""
        hint = f"access is denied{said}; check your keys, whether they have expired, and your clock"
        raise InputError(f"{where} may not be {done}", hint) from error
    if isinstance(cause, OSError) and cause.errno == errno.EINVAL:  # 400: what AWS answers to a key that has expired
        hint = f"the server says '{cause.strerror}'; check whether your keys have expired, and the region"
        raise InputError(f"{where} may not be {done}", hint) from error
    if isinstance(cause, ssl.SSLCertVerificationError):
        raise InputError(f"{where} cannot be read", f"its certificate is not valid ({cause.verify_message})") from error
    if isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME:
        raise InputError(f"{where} cannot be read", "there is no such host; check the address") from error
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    return f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
