"""Row 3: files that are well formed and senseless. Only errors of ours, little memory, within two seconds.

A few are drawn at random in `make test`; a nightly run lets coverage choose them (`guided.py`).
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from random import Random

import numpy as np

from faults.matrix import ROWS, Row, Trials
from faults.parsers import PARSERS, Parser
from tilework.core.errors import TileworkError

EVERY = 1_000_000_000  # as many as the time allows
SECONDS, MEMORY = 2.0, 512 << 20  # of processor time, and growth of resident memory


class Choices(Random):
    """A source of choices that are read from bytes; when they are used up, those of a generator that never changes."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self.data, self.at = data, 0

    def _read(self, size: int) -> int:
        part = self.data[self.at : self.at + size]
        self.at += size
        return int.from_bytes(part, "little") if len(part) == size else super().getrandbits(8 * size)

    def _randbelow(self, n: int) -> int:
        return self._read(((n - 1).bit_length() + 7) // 8) % n

    def random(self) -> float:
        """From 0 up to 1."""
        return self._read(2) / 65536

    def getrandbits(self, k: int) -> int:
        """Few bits as they are, many from a generator that a few start."""
        return self._read((k + 7) // 8) % (1 << k) if k <= 64 else Random(self._read(3)).getrandbits(k)


class Trial:
    """One parser in one folder, whose files are sound before every trial."""

    def __init__(self, parser: Parser, folder: Path) -> None:
        self.parser, self.folder = parser, folder
        parser.make(folder)
        parser.read(folder)  # sound as it is; and imports happen
        self.sound = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def __call__(self, rng: Random) -> str | None:
        """What is wrong with how a senseless variant is read or refused, if anything."""
        undo = self.parser.write(self.folder, rng)
        trouble = judged(partial(self.parser.read, self.folder))
        if trouble is None or undo is not None:
            (undo or self.restore)()
        return trouble

    def restore(self) -> None:
        """The sound files, as new ones: the old may still be mapped."""
        for path in self.folder.rglob("*"):
            if path.is_file() and path not in self.sound:
                path.unlink()
        for path, data in self.sound.items():
            if not path.is_file() or path.read_bytes() != data:
                path.unlink(missing_ok=True)
                path.write_bytes(data)


def judged(read: Callable[[], object]) -> str | None:
    """What is wrong with how a file is read or refused, if anything."""
    before, begun = forget_peak(), time.process_time()
    trouble = None
    try:
        read()
    except TileworkError as error:
        trouble = "more than one line" if "\n" in str(error) else None
    except Exception as error:
        trouble = f"{type(error).__name__}: {str(error)[:200]}"
    seconds = time.process_time() - begun
    grown = memory("VmHWM") - before
    trouble = trouble or (f"{seconds:.1f} s" if seconds > SECONDS else None)
    return trouble or (f"{grown >> 20} MB" if grown > MEMORY else None)


def forget_peak() -> int:
    """Begin to measure the peak of this process's memory anew; returns its memory now, in bytes (Linux alone)."""
    ctypes.CDLL(None).malloc_trim(0)  # what was freed does not hide what is taken
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def memory(which: str) -> int:
    """Resident memory of this process in bytes: VmRSS now, VmHWM at its peak."""
    found = re.search(rf"{which}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def drawn(parser: Parser, count: int, rng: np.random.Generator, folder: Path) -> Trials:
    """Files of a parser, drawn at random."""
    trial, seed = Trial(parser, folder), int(rng.integers(2**31))
    for number in range(count):
        trouble = trial(Random(f"{seed}/{number}"))
        if trouble:
            trial.restore()
        yield trouble and f"{parser.name}, file {number} of seed {seed}: {trouble}"


def guided(parser: Parser, seconds: float, seed: int, folder: Path) -> Iterator[str | None]:
    """Files of a parser that coverage chose, for so many seconds of processor time, in a process of its own."""
    command = [sys.executable, "-m", "faults.guided", parser.name, "--seconds", str(seconds), "--seed", str(seed)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    said, done = folder / "said", False  # a file: nobody empties a pipe meanwhile
    with said.open("w") as errors:
        process = subprocess.Popen(
            [*command, "--folder", str(folder)], stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )
        assert process.stdout is not None
        for line in process.stdout:
            told = json.loads(line)
            yield from [None] * told["passed"]
            yield from told["troubles"]
            done = told["done"]
        process.wait()
    if not done:
        lines = said.read_text(errors="replace").splitlines()
        why = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b|terminate|  what|ALARM", line)] or lines
        last = b"".join(path.read_bytes() for path in [*folder.glob("crash-*"), *folder.glob("timeout-*")][:1])
        ended = f"the process ended with {process.returncode}: {' '.join(why[-3:])[:500]}"
        yield f"{parser.name}, choices {last.hex()}: {ended}"


GUIDED = find_spec("atheris") is not None  # else all are drawn at random

for parser in PARSERS:
    ROWS.append(
        Row(
            3, f"senseless files: {parser.name}", EVERY, 20, partial(drawn, parser), parser.seconds,
            partial(guided, parser) if GUIDED else None,
        )
    )  # fmt: skip
