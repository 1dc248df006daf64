"""Where the tokenizer of a store or a run lies: known by its hash, looked for near it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from tilework.core.files import new_directory
from tilework.tokenizers.tokenizer import SETTINGS, WEIGHTS

FOLDER = "tokenizer"  # inside a run or an exported model
LARGEST = 64 << 20  # bytes of weights that a run keeps a copy of
FARTHEST = 2  # folders up, beyond which a place says more about a machine than about a tokenizer


def place_from(folder: Path, tokenizer: Path | None) -> dict[str, str]:
    """Where a tokenizer lies as seen from a folder, if that is near."""
    if tokenizer is None:
        return {}
    try:
        place = Path(os.path.relpath(tokenizer.absolute(), folder.absolute())).as_posix()
    except ValueError:  # another drive
        return {}
    return {"place": place} if place.count("../") <= FARTHEST else {}


def find_tokenizer(known: Mapping[str, str], folder: Path) -> Path | None:
    """The tokenizer with a hash: where it is said to lie as seen from a folder, or among the folders there.

    known: `sha256`, and `place` where it was told.
    """
    wanted = known.get("sha256")
    return next((path for path in _places(known, folder) if wanted and _hash(path) == wanted), None)


def _places(known: Mapping[str, str], folder: Path) -> Iterator[Path]:
    yield folder / FOLDER
    if known.get("place"):
        yield folder / known["place"]
    if folder.is_dir():
        yield from sorted(path.parent for path in folder.glob(f"*/{SETTINGS}"))


def _hash(path: Path) -> str | None:
    try:
        settings = json.loads((path / SETTINGS).read_bytes())
        return str(settings["sha256"]) if (path / WEIGHTS).is_file() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep_tokenizer(tokenizer: Path, folder: Path, largest: int | None = LARGEST) -> bool:
    """Put a copy into a run or an exported model, which costs nothing on the same disk; says whether it did.

    largest: bytes of weights above which it does not; None: it always does.
    """
    if largest is not None and (tokenizer / WEIGHTS).stat().st_size > largest:
        return False
    with new_directory(folder / FOLDER, replace=True) as copy:
        for name in (SETTINGS, WEIGHTS):
            try:
                os.link((tokenizer / name).resolve(), copy / name)  # files of tokenizers are never changed in place
            except OSError:
                shutil.copyfile(tokenizer / name, copy / name)
    return True
