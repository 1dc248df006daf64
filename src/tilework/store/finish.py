"""The end of a store: it appears whole, what is left of its spool goes, and a repeated command knows both.

x.tok.spool/done    hashes of the store's manifest and of the spool's plan, written before the store is moved to x.tok
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import numpy as np

from tilework.core.errors import OutputError, TileworkError
from tilework.core.files import locked, sync_tree, write
from tilework.store.manifest import NAME
from tilework.store.spool import MARK, PARTS, Plan, Spool, spool_of


def publish(spool: Spool, sealed: Path, out: Path) -> None:
    """Move a whole store from its spool to its place, after a note of both, by which its end is known."""
    try:
        sync_tree(sealed)
        write(spool.path / "done", _digest(sealed / NAME) + _digest(spool.path / "plan.json"))
        out.parent.mkdir(parents=True, exist_ok=True)
        sealed.rename(out)
        try:
            sync_tree(out.parent, below=False)
        except OSError:
            out.rename(sealed)
            raise
    except OSError as error:
        raise OutputError(f"cannot write {out}", str(error)) from error


def is_done(spool: Path, out: Path) -> bool:
    """Whether the store is finished and only the spool is left to remove."""
    mark, plan, manifest = spool / "done", spool / "plan.json", out / NAME
    there = all(file.is_file() for file in (mark, plan, manifest))
    return there and mark.read_bytes() == _digest(manifest) + _digest(plan)


def is_finished(out: Path) -> bool:
    """Whether a store is there, and with it all that is written beside it.

    What is left of a spool whose removal was cut short is removed. One that is whole belongs to a process that was
    killed before that, and may have more to write, unless it is of a StoreWriter, which writes the store alone.
    """
    if not out.exists():
        return False
    spool = spool_of(out)
    if (spool / PARTS).is_dir() and not (spool / MARK).is_file() and is_done(spool, out):
        return False
    clear(spool, out)
    return True


def refuse_existing(out: Path) -> None:
    """Refuse a store that is there, unless something is left to write beside it."""
    if is_finished(out):
        raise OutputError(f"{out} exists", "choose another path or remove it")


def clear(spool_path: Path, out: Path) -> None:
    """Remove the rest of the spool of a finished store, unless another process does so now."""
    with suppress(OSError, TileworkError), locked(spool_path):
        if not any(spool_path.iterdir()):
            spool_path.rmdir()
        elif (spool_path / "done").read_bytes().startswith(_digest(out / NAME)):
            Spool(spool_path, Plan(1, (1,), ()), np.zeros((1, 1))).remove()


def _digest(file: Path) -> bytes:
    return hashlib.sha256(file.read_bytes()).hexdigest().encode()
