"""Codes in tar files (WebDataset), read and written: `KEY.npy` with the codes of an image, `KEY.cls` with its class.

tokens.json             description, and the SHA-256 of each tar file: a tar file has no checksums of its own
codebook.safetensors    code vectors, and synonyms where the store has some
00000.tar               KEY.npy (H, W) or (T,), (V, ...) with several views: uint16, int32 beyond 65,536 codes; KEY.cls

A key is percent-encoded wherever a member's name could not hold it: `cat/0.png` becomes `cat/0%2Epng`.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes

import numpy as np

from tilework.core.errors import DamageError, InputError
from tilework.core.files import new_directory, sha256, write
from tilework.data.labels import Label
from tilework.data.npy_files import parse_npy
from tilework.data.tar_files import TarIndex, index_tars, read_at
from tilework.data.token_files import TOGETHER, Description, codes_of, describe, unique_keys
from tilework.store import Store

DESCRIPTION = "tokens.json"
LARGEST_DESCRIPTION = 1 << 28
SHARD_IMAGES = 10_240


def write_tar_tokens(store: Store, out: Path, progress: Callable[[int, int], None] = lambda *step: None) -> None:
    """A folder of tar files with the codes of a store."""
    names, labels = list(map(_name_of, unique_keys(store))), store.column("label").tolist()
    with new_directory(out) as root, ExitStack() as opened:
        for index, codes in codes_of(store):
            if index.start % SHARD_IMAGES == 0:
                opened.close()
                tar = opened.enter_context(tarfile.open(root / f"{index.start // SHARD_IMAGES:05d}.tar", "w"))
            for i, ids in zip(index, codes, strict=True):
                data = io.BytesIO()
                np.save(data, ids, allow_pickle=False)
                _add(tar, f"{names[i]}.npy", data.getvalue())
                _add(tar, f"{names[i]}.cls", str(labels[i]).encode())
            progress(index.stop, len(store))
        opened.close()
        files = {path.name: sha256(path) for path in sorted(root.glob("*.tar"))}
        write(root / DESCRIPTION, describe(store, root, files).text())


@dataclass(frozen=True)
class TarTokens:
    """Codes in some tar files."""

    where: Path
    index: TarIndex
    described: Description | None

    @staticmethod
    def open(tars: Sequence[Path]) -> TarTokens:
        """List some tar files; those that are described must all be there, unchanged."""
        where = tars[0].parent
        path, told = where / DESCRIPTION, None
        if path.is_file():
            told = Description.parse(read_at(path, 0, min(path.stat().st_size, LARGEST_DESCRIPTION)), path)
            if sorted(told.files) != sorted(tar.name for tar in tars):
                raise InputError(f"{where} lacks files that {DESCRIPTION} names, or has others", "give all of them")
            if changed := [tar for tar in tars if sha256(tar) != told.files[tar.name]]:
                raise DamageError(f"{changed[0]} differs from its hash in {DESCRIPTION}", "restore it")
        index = index_tars(tars, ["npy"])
        if not index.keys:
            raise InputError(f"{tars[0]} holds no codes", "KEY.npy is read; for images there is 'tilework tokenize'")
        return TarTokens(where, replace(index, keys=tuple(map(_key_of, index.keys))) if told else index, told)

    @property
    def keys(self) -> Sequence[str]:
        """The name of each image."""
        return self.index.keys

    @property
    def found(self) -> Sequence[Label]:
        """The label of each image as it is written."""
        return self.index.found

    def batches(self) -> Iterator[np.ndarray]:
        """Codes of some images at a time, in order."""
        shape = None
        for start in range(0, len(self.keys), TOGETHER):
            index = range(start, min(start + TOGETHER, len(self.keys)))
            held = []
            for i, data in zip(index, self.index.read(index), strict=True):
                try:
                    ids = parse_npy(data)
                except ValueError as error:
                    raise InputError(f"'{self.keys[i]}' in {self.where} is no numpy array", str(error)) from error
                shape = shape or ids.shape
                if ids.shape != shape or not ids.size or ids.dtype.kind not in "iu":
                    what = f"'{self.keys[i]}' in {self.where} holds {ids.dtype} of shape {ids.shape}"
                    raise InputError(what, f"integers of shape {shape} are needed")
                held.append(ids)
            yield np.stack(held)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)  # of no time and no owner: the same bytes every time
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def _name_of(key: str) -> str:
    parts = [quote(part.encode("utf-8", "surrogateescape"), safe="").replace(".", "%2E") for part in key.split("/")]
    return "/".join(part or "%" for part in parts)


def _key_of(name: str) -> str:
    parts = [b"" if part == "%" else unquote_to_bytes(part) for part in name.split("/")]
    return b"/".join(parts).decode("utf-8", "surrogateescape")
