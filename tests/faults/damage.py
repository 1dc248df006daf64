"""Rows 1 and 2: bits that flip, files that are cut, zeroed, repeated and exchanged."""

from __future__ import annotations

import atexit
import shutil
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from faults.matrix import ROWS, Row, Trials
from faults.things import THINGS, Thing
from tilework.core.errors import TileworkError

# logs are for people, and repeat what others hold; nothing is computed from them
UNREAD = ("log.jsonl", "log.csv", "card.json")
UNFINISHED = ("results.json",)  # a run without it has not ended, and is read as such


@cache
def _sound(thing: Thing) -> Path:
    """Made once for all rows of a process."""
    folder = Path(mkdtemp(prefix="faults-sound-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    thing.make(folder / "thing")
    return folder / "thing"


def made(thing: Thing, folder: Path) -> tuple[Path, list[Path], Any]:
    """A sound one, its files, and what it holds."""
    path = Path(shutil.copytree(_sound(thing), folder / "thing"))
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name not in UNREAD)
    return path, files, thing.read(path)


def judge(thing: Thing, path: Path, damaged: Path, sound: Any) -> str | None:
    """None if the damage is refused by one line that names the file, or does not show."""
    try:
        found = thing.read(path)
    except TileworkError as error:
        told = str(error)
        parent = damaged.parent.name
        if "\n" in told:
            return f"more than one line: {told}"
        return None if damaged.stem in told or parent in told or path.name in told else f"file not named: {told}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None if found == sound else "another content, unnoticed"


def put(file: Path, data: bytes) -> None:
    """A new file: the old one may still be mapped."""
    file.unlink()
    file.write_bytes(data)


def tried(thing: Thing, path: Path, file: Path, data: bytes, sound: Any, what: str) -> str | None:
    """Damage a file, judge, and restore it."""
    whole = file.read_bytes()
    put(file, data)
    try:
        trouble = judge(thing, path, file, sound)
    finally:
        put(file, whole)
    return trouble and f"{thing.name}, {file.relative_to(path)}, {what}: {trouble}"


def flips(thing: Thing, count: int, rng: np.random.Generator, folder: Path) -> Trials:
    """A bit of any file: files alike, places alike within each."""
    path, files, sound = made(thing, folder)
    for _ in range(count):
        file = files[rng.integers(len(files))]
        data = bytearray(file.read_bytes())
        at, bit = int(rng.integers(len(data))), int(rng.integers(8))
        data[at] ^= 1 << bit
        yield tried(thing, path, file, bytes(data), sound, f"bit {bit} of byte {at}")


def cuts(thing: Thing, count: int, rng: np.random.Generator, folder: Path) -> Trials:
    """Every file cut at every byte, or at so many places of all."""
    path, files, sound = made(thing, folder)
    places = [(file, size) for file in files for size in range(file.stat().st_size)]
    for number in rng.permutation(len(places))[:count]:
        file, size = places[number]
        yield tried(thing, path, file, file.read_bytes()[:size], sound, f"cut to {size} bytes")


def blocks(thing: Thing, count: int, rng: np.random.Generator, folder: Path) -> Trials:
    """Zeroed, repeated and exchanged blocks; exchanged, missing and additional files."""
    path, files, sound = made(thing, folder)
    for _ in range(count):
        file = files[rng.integers(len(files))]
        whole = file.read_bytes()
        length = int(rng.integers(1, min(len(whole), 512) + 1))
        a, b = (int(rng.integers(len(whole) - length + 1)) for _ in range(2))
        kinds: dict[str, Callable[[], bytes]] = {
            "zeroed": lambda w=whole, a=a, n=length: w[:a] + bytes(n) + w[a + n :],
            "repeated": lambda w=whole, a=a, n=length: w[: a + n] + w[a:],
            "copied": lambda w=whole, a=a, b=b, n=length: w[:b] + w[a : a + n] + w[b + n :],
            "left out": lambda w=whole, a=a, n=length: w[:a] + w[a + n :],
            "of another file": lambda rng=rng: files[rng.integers(len(files))].read_bytes(),
            "empty": lambda: b"",
        }
        kind = list(kinds)[rng.integers(len(kinds))]
        yield tried(thing, path, file, kinds[kind](), sound, f"{length} bytes at {a} {kind}")
    for file in (file for file in files if file.name not in UNFINISHED):  # each missing, at last
        kept = folder / "kept"
        shutil.move(file, kept)
        trouble = judge(thing, path, file, sound)
        shutil.move(kept, file)
        yield trouble and f"{thing.name}, {file.relative_to(path)} missing: {trouble}"


Damage = Callable[[Thing, int, np.random.Generator, Path], Iterator[str | None]]


def enter(number: int, what: str, full: int, quick: int, damage: Damage) -> None:
    """A row for each thing."""
    for thing in THINGS:
        ROWS.append(Row(number, f"{what}: {thing.name}", full, quick, partial(damage, thing)))


enter(1, "bit flips", 12_500, 40, flips)  # 100,000 over the eight
enter(2, "cut at any byte", 1_000_000, 20, cuts)  # all bytes of the smaller ones
enter(2, "blocks and files", 625, 20, blocks)  # 5,000
