"""JSON objects that carry a hash of themselves, so that a changed digit or name is noticed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tilework.core.errors import DamageError
from tilework.core.files import read_plain, write

SEAL = "seal"  # the last key of a file
LARGEST = 1 << 26  # bytes of a file


def seal_of(body: dict[str, Any]) -> str:
    """SHA-256 of an object, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def sealed(body: dict[str, Any]) -> bytes:
    """Readable JSON of an object with its hash."""
    plain = json.loads(json.dumps(body))  # as it will be read: keys are text, tuples are lists
    return (json.dumps({**plain, SEAL: seal_of(plain)}, indent=2) + "\n").encode()


def write_sealed(path: Path, body: dict[str, Any]) -> None:
    """Write an object with its hash, atomically."""
    write(path, sealed(body))


def read_json(path: Path, required: bool = False) -> dict[str, Any]:
    """The object of a file, without its hash; one that was changed is refused.

    required: the hash must be there; otherwise files that others or older versions wrote may lack it.
    """
    try:
        plain = json.loads(read_plain(path, LARGEST))
        if not isinstance(plain, dict):
            raise ValueError("no object")
        seal = plain.pop(SEAL, None)
        changed = seal != seal_of(plain) if seal is not None else required
    except (OSError, ValueError, RecursionError) as error:
        raise DamageError(f"{path} is not JSON", f"restore it ({error})") from error
    if changed:
        raise DamageError(f"{path} was changed after it was written", "restore it")
    return plain
