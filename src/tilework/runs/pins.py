"""Names on the hub in a run: fixed to a commit when it begins, with the SHA-256 of every file that it took."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tilework.core.config import decode, encode
from tilework.core.errors import DamageError, InputError
from tilework.core.hub import Fetched, fetch
from tilework.core.location import HF, HubName, PathOrHub
from tilework.core.sealed import read_json
from tilework.runs.directory import DATA, HUB
from tilework.runs.run import R

Hashes = dict[str, dict[str, str]]  # of files, by names on the hub


def pin_start(start: PathOrHub | None, out: Path) -> PathOrHub | None:
    """The same with its commit; the commit that the run in `out` began with, if its files are still the same."""
    return _pin(start, _recorded(out), out) if isinstance(start, HubName) else start


def pin_settings(run: R, out: Path) -> R:
    """The same run or chain, with the commit in every setting that is a name on the hub."""
    plain = encode(run)
    if not any(_names(plain)):
        return run
    known = _recorded(out)
    pinned: R = decode(type(run), _changed(plain, lambda text: str(_pin(HubName(text), known, out))))
    return pinned


def hashes_of(run: Any, start: PathOrHub | None) -> Hashes:
    """SHA-256 of every file from the hub that a run uses."""
    names = [*_names(encode(run)), *([start] if isinstance(start, HubName) else [])]
    return {str(found.name): found.sha256 for found in map(fetch, dict.fromkeys(names))}


def _pin(name: HubName, known: Hashes, out: Path) -> HubName:
    found = fetch(name)
    for before, hashes in known.items():
        old = HubName(before)
        if (old.repo, old.file) != (name.repo, name.file) or (name.pinned and name.revision != old.revision):
            continue
        if changed := _first_change(found, hashes):
            what = f"{changed} of hf://{name.repo} is not the file that the run in {out} began with"
            if name.pinned:
                raise DamageError(what, "the copy in the cache is damaged: remove it, or choose another --out")
            raise InputError(what, f"give {old} to go on with the old one, or choose another --out")
        return old
    return found.name


def _first_change(found: Fetched, hashes: dict[str, str]) -> str | None:
    return next((file for file, sha256 in hashes.items() if found.sha256.get(file) != sha256), None)


def _recorded(out: Path) -> Hashes:
    """Of the run in a directory, or of all runs of the chain there."""
    found: Hashes = {}
    for file in (out / DATA, *sorted(out.glob(f"[1-9]-*/{DATA}"))):
        if file.is_file():
            found |= read_json(file).get(HUB) or {}
    return found


def _names(plain: Any) -> Iterator[HubName]:
    if isinstance(plain, dict | list):
        for value in plain.values() if isinstance(plain, dict) else plain:
            yield from _names(value)
    elif isinstance(plain, str) and plain.startswith(HF):
        yield HubName(plain)


def _changed(plain: Any, change: Callable[[str], str]) -> Any:
    if isinstance(plain, dict):
        return {key: _changed(value, change) for key, value in plain.items()}
    if isinstance(plain, list):
        return [_changed(value, change) for value in plain]
    return change(plain) if isinstance(plain, str) and plain.startswith(HF) else plain
