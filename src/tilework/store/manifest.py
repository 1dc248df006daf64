"""The manifest of a store: contents, origin, and hashes of itself and of every file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, Literal

from tilework.core.config import decode
from tilework.core.errors import ConfigError, DamageError, InputError
from tilework.core.files import sha256, write
from tilework.core.sealed import seal_of
from tilework.store.columns import ColumnEntry
from tilework.store.shard import ShardEntry

Frame = Literal["cover", "squash", "letterbox"]  # how an image of any aspect fills a size
NAME = "manifest.json"
FORMAT = "tilework store"
VERSION = 2  # written
READABLE = (1, 2)  # they differ in the form of shards and of the tables of codec `mix`
LARGEST = 1 << 28  # bytes
LARGEST_LENGTH = 1 << 16  # codes of a record
LARGEST_STACKED = 1 << 18  # the same where a position has several codes: 36x36 positions with 192 each are fewer
DTYPES = {f"<{kind}" for kind in ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8")} | {"|b1", "|i1", "|u1"}


@dataclass(frozen=True)
class File:
    """Size and hash of a file of the store."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Contents and origin of a store."""

    images: int
    grid: tuple[int, ...]  # rows, columns, and codes of each position if several; or the length of a sequence
    vocabulary: int
    codec: str
    classes: tuple[str, ...]
    shards: tuple[ShardEntry, ...]
    columns: tuple[ColumnEntry, ...]
    views: int = 1  # records of each image, one after another
    tokenizer: dict[str, str] = field(default_factory=dict)  # name, sha256 of its weights
    tokenizer_codes: int = 0  # of the tokenizer, where the store keeps only those in use
    substituted: int = 0  # codes outside the set of used ones, replaced by their nearest neighbour in it
    preprocessing: str = ""  # in words, for people
    frame: Frame = "cover"  # how images filled the tokenizer's size; not written if "cover"
    licence: str = ""
    software: str = ""
    shuffled: bool = False  # images lie in random order: shards can be read one after another; not written if false
    original_bytes: int = 0  # of the image files that it was made from; not written where it is not known
    files: dict[str, File] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Codes of a record."""
        return prod(self.grid)


def with_frame(told: Any) -> Any:
    """What a store, or a part of one, says of itself as JSON, with the frame that older ones tell only in words."""
    squashed = isinstance(told, dict) and "frame" not in told and ", squashed " in str(told.get("preprocessing"))
    return {**told, "frame": "squash"} if squashed else told


def largest_length(grid: tuple[int, ...]) -> int:
    """Largest number of codes in a record."""
    return LARGEST_STACKED if len(grid) == 3 else LARGEST_LENGTH


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Hash the files of the store that the manifest does not list yet, and write it, last of all."""
    names = [shard.file for shard in manifest.shards] + ["codebook.safetensors"]
    names += ["tables.safetensors"] if (root / "tables.safetensors").is_file() else []
    for column in manifest.columns:
        names += [shard.file for shard in column.shards] or [column.file]
    files = {n: manifest.files.get(n) or File((root / n).stat().st_size, sha256(root / n)) for n in sorted(names)}
    body = asdict(replace(manifest, files=files))
    if not manifest.shuffled:  # as stores were written before they could be
        del body["shuffled"]
    if not manifest.original_bytes:
        del body["original_bytes"]
    if manifest.frame == "cover":
        del body["frame"]
    text = {"format": FORMAT, "version": VERSION, **body, "seal": seal_of(body)}
    write(root / NAME, (json.dumps(text, indent=1) + "\n").encode())


def read(root: Path) -> Manifest:
    """The manifest of a local store; refuses another format or version, or an edited text."""
    path = root / NAME
    if not path.is_file():
        raise InputError(f"{root} is not a token store", f"it has no {NAME}; make one with 'tilework tokenize'")
    try:  # it may vanish meanwhile, when the store is replaced
        if path.stat().st_size > LARGEST:
            raise DamageError(f"{path} is larger than a manifest can be", "restore it")
        return parse(path.read_bytes(), str(root))
    except OSError as error:
        raise DamageError(f"{path} cannot be read", f"restore it ({error})") from error


def parse(data: bytes, root: str) -> Manifest:
    """The manifest of the store at a path or URL, from its bytes."""
    path = f"{root}/{NAME}"
    try:
        text = json.loads(data)
        text = text if isinstance(text, dict) else {}
        digest = seal_of({key: value for key, value in text.items() if key not in ("format", "version", "seal")})
    except (ValueError, RecursionError) as error:
        raise DamageError(f"{path} is not JSON", f"restore it ({error})") from error
    if text.pop("format", None) != FORMAT:
        raise DamageError(f"{path} is not the manifest of a token store", "restore it")
    if (version := text.pop("version", None)) not in READABLE or isinstance(version, bool):
        raise DamageError(f"{root} has store version {version}, this software reads 1 and 2", "update Tilework")
    if text.pop("seal", None) != digest:
        raise DamageError(f"{path} was changed after it was written", "restore it")
    try:
        manifest: Manifest = decode(Manifest, with_frame(text))
    except (ConfigError, RecursionError) as error:
        raise DamageError(f"{path} is malformed", str(error)) from error
    _check(root, manifest)
    return manifest


def _check(root: str, manifest: Manifest) -> None:
    """Check sizes before anything is allocated by them, that shards add up, and that files lie below the root."""
    path = f"{root}/{NAME}"
    columns = manifest.columns
    rows = [manifest.shards, *(column.shards for column in columns if column.kind in ("bytes", "ragged"))]
    sizes = [*manifest.grid, manifest.vocabulary, manifest.views, *(shard.records for row in rows for shard in row)]
    sizes += [side for column in columns for side in column.shape]
    if not all(rows) or len(manifest.grid) not in (1, 2, 3) or min(sizes) < 1 or max(*sizes, manifest.length) > 1 << 24:
        raise DamageError(f"{path} is malformed", "the size of its grid, vocabulary or a shard is out of range")
    if not 0 < manifest.images <= 1 << 40 or manifest.original_bytes < 0:
        raise DamageError(f"{path} is malformed", "its number of images or bytes is out of range")
    if manifest.length > largest_length(manifest.grid):
        raise DamageError(f"{path} is malformed", "its records have too many codes")
    if any(column.shards and column.kind in ("array", "text") for column in columns):
        raise DamageError(f"{path} is malformed", "it lists shards of an array or text column")
    if any(column.kind == "ragged" and column.dtype not in DTYPES for column in columns):
        raise DamageError(f"{path} is malformed", "a column has an unknown type")
    if len({column.name for column in columns}) < len(columns) or not all(c.name.isidentifier() for c in columns):
        raise DamageError(f"{path} is malformed", "a column name is invalid or occurs twice")
    named = [shard.file for row in rows for shard in row]
    outside = [name for name in (*named, *manifest.files) if name.startswith("/") or ".." in name.split("/")]
    if outside or not set(named) <= set(manifest.files):
        raise DamageError(f"{path} is malformed", "it names files outside the store or without a hash")
    for row, count in zip(rows, [manifest.images * manifest.views, *(len(rows) - 1) * [manifest.images]], strict=True):
        if sum(shard.records for shard in row) != count:
            raise DamageError(f"the shards of {root} do not add up to {count} records", "restore the manifest")
