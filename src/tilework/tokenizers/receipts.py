"""What stands beside a store: receipts of its parts while it is made, and lists of what was left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilework.core.config import decode
from tilework.core.errors import BrokenImagesError, ConfigError, DamageError
from tilework.core.sealed import read_json
from tilework.data.image_files import Broken
from tilework.store import Spool

POOLED = "pooled"  # files of features beside a store, and in its spool


@dataclass(frozen=True)
class Receipt:
    """What a part was made of, and what it lacks."""

    images: int
    broken: tuple[Broken, ...]
    boxes: tuple[dict[str, Any], ...] = ()  # that cannot be used


def receipt_file(spool: Spool, number: int) -> Path:
    """Where the receipt of a part lies."""
    return spool.path / f"receipts/{number:05d}.json"


def read_receipts(spool: Spool) -> list[Receipt]:
    """Those of the parts that are there, in order."""
    return [_read(file) for file in sorted((spool.path / "receipts").glob("*.json"))]


def _read(file: Path) -> Receipt:
    body = read_json(file)
    try:
        receipt: Receipt = decode(Receipt, body)
    except ConfigError as error:
        raise DamageError(f"{file} is malformed", f"remove it with its part and tokenize again ({error})") from error
    return receipt


def check_receipt(spool: Spool, number: int, broken: list[Broken], total: int, max_broken: float) -> None:
    """Add the images that a part lacks to those known; refuse too many."""
    broken += _read(receipt_file(spool, number)).broken
    check_broken(broken, total, max_broken)


def check_broken(broken: Sequence[Broken], total: int, share: float) -> None:
    """Refuse a larger share of unreadable images than is accepted."""
    if len(broken) > share * total or len(broken) == total:
        raise BrokenImagesError(
            f"{len(broken)} of {total} images cannot be read (first: {broken[0].path}: {broken[0].reason})",
            broken=len(broken),
            total=total,
        )


def quarantine_of(out: Path) -> Path:
    """Where the images that could not be read are listed."""
    return out.with_name(f"{out.name}.quarantine.json")


def images_of(out: Path) -> Path:
    """Where the folder of a store's images is named, as seen from there; outside the store, which may go elsewhere."""
    return out.with_name(f"{out.name}.images.json")


def boxes_of(out: Path) -> Path:
    """Where the boxes that cannot be used are listed."""
    return out.with_name(f"{out.name}.boxes_set_aside.json")


def pooled_of(out: Path) -> Path:
    """Where the pooled features of a store's images lie, (N, D) float32, if they were asked for."""
    return out.with_name(f"{out.name}.{POOLED}.npy")
