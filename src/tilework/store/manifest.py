"""The manifest: what a store says of itself, sealed by a hash of its own text and of every file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tilework.core.config import decode
from tilework.core.errors import ConfigError, DamageError, InputError
from tilework.core.files import sha256, write

NAME = "manifest.json"
FORMAT = "tilework store"
VERSION = 1
LARGEST = 1 << 28  # bytes


@dataclass(frozen=True)
class File:
    """Size and hash of a file of the store."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class ShardEntry:
    """A shard and the number of its records."""

    file: str
    records: int


@dataclass(frozen=True)
class Manifest:
    """Contents and origin of a store."""

    images: int
    grid: tuple[int, int]
    vocabulary: int
    codec: str
    classes: tuple[str, ...]
    shards: tuple[ShardEntry, ...]
    columns: tuple[str, ...]
    tokenizer: dict[str, str] = field(default_factory=dict)  # name, sha256 of its weights
    preprocessing: str = ""
    licence: str = ""
    software: str = ""
    files: dict[str, File] = field(default_factory=dict)


def seal(root: Path, manifest: Manifest) -> None:
    """Hash every file below the root and write the manifest, last of all."""
    found = sorted(path for path in root.rglob("*") if path.is_file() and path.name != NAME)
    files = {path.relative_to(root).as_posix(): File(path.stat().st_size, sha256(path)) for path in found}
    body = {**asdict(manifest), "files": {name: asdict(file) for name, file in files.items()}}
    text = {"format": FORMAT, "version": VERSION, **body, "seal": _hash(body)}
    write(root / NAME, (json.dumps(text, indent=1) + "\n").encode())


def read(root: Path) -> Manifest:
    """The manifest of a store; refuses another format, version or an edited text."""
    path = root / NAME
    if not path.is_file():
        raise InputError(f"{root} is not a token store", f"it has no {NAME}; make one with 'tilework tokenize'")
    if path.stat().st_size > LARGEST:
        raise DamageError(f"{path} is larger than a manifest can be", "restore it")
    try:
        text = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DamageError(f"{path} is not JSON", f"restore it ({error})") from error
    if not isinstance(text, dict) or text.pop("format", None) != FORMAT:
        raise DamageError(f"{path} is not the manifest of a token store", "restore it")
    if (version := text.pop("version", None)) != VERSION:
        raise DamageError(f"{root} has store version {version}, this software reads {VERSION}", "update Tilework")
    if text.pop("seal", None) != _hash(text):
        raise DamageError(f"{path} was changed after it was written", "restore it")
    try:
        manifest: Manifest = decode(Manifest, text)
    except ConfigError as error:
        raise DamageError(f"{path} is malformed", str(error)) from error
    sizes = [*manifest.grid, manifest.vocabulary, *(shard.records for shard in manifest.shards)]
    if not manifest.shards or min(sizes) < 1 or max(sizes) > 1 << 24 or manifest.grid[0] * manifest.grid[1] > 1 << 24:
        raise DamageError(f"{path} is malformed", "a grid, vocabulary or shard of impossible size")
    if sum(shard.records for shard in manifest.shards) != manifest.images:
        raise DamageError(f"the shards of {root} do not add up to {manifest.images} images", "restore the manifest")
    return manifest


def _hash(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
