"""Row 7: a disk that is full, broken or forbidden, at any call: the old state stays, and the next run ends well."""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from faults.kills import WORKS, Work, finish, undisturbed
from faults.matrix import ROWS, Row, Trials
from faults.processes import ended, launch
from faults.things import make_run

CALLS = ("fsync", "mkdir", "rename", "replace", "open to write", "write")
ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EACCES": errno.EACCES, "EDQUOT": errno.EDQUOT}


class Disk(io.FileIO):
    """A file that fails at its nth write, after half of it if `short`."""

    def __init__(self, file: Any, fails: Callable[[str], bool], code: int, short: bool) -> None:
        super().__init__(file, "wb")
        self._fails, self._code, self._short = fails, code, short

    def write(self, data: Any) -> int:
        if self._fails("write"):
            if self._short:
                super().write(bytes(data)[: len(data) // 2])
            raise OSError(self._code, os.strerror(self._code))
        return super().write(data) or 0


def break_disk(number: int, code: int, short: bool, below: Path) -> None:
    """From now on the nth call that changes a file below a directory fails, and so do all later ones of its kind."""
    calls, broken = 0, ""
    real_open = io.open

    def fails(kind: str) -> bool:
        nonlocal calls, broken
        calls += 1
        if calls == number:
            broken = kind
        return kind == broken

    def wrap(kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if (kind == "fsync" or str(args[0]).startswith(str(below))) and fails(kind):
                raise OSError(code, os.strerror(code))
            return real(*args, **options)

        return call

    def open_file(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        if mode == "wb" and not isinstance(file, int) and str(file).startswith(str(below)):
            if fails("open to write"):
                raise OSError(code, os.strerror(code))
            return io.BufferedWriter(Disk(file, fails, code, short))
        return real_open(file, mode, *args, **options)

    for kind in ("fsync", "mkdir", "rename", "replace"):
        setattr(os, kind, wrap(kind, getattr(os, kind)))
    io.open = builtins.open = open_file  # type: ignore[assignment]


def errors(work: Work, count: int, rng: np.random.Generator, folder: Path) -> Trials:
    """A command on a disk that fails ends by one line and the code for output; on a sound disk it then ends well."""
    whole = undisturbed(work, folder)
    for number in range(count):
        place, log = folder / f"trial-{number}", folder / "log-trial.txt"
        place.mkdir()
        log.unlink(missing_ok=True)
        name, short = list(ERRORS)[rng.integers(len(ERRORS))], bool(rng.integers(2))
        at = int(rng.integers(1, 60))
        words = work.words(folder / "data", place / "out")
        code = ended(launch(words, log, partial(break_disk, at, ERRORS[name], short, place)))
        told = log.read_text()
        if code not in (0, 7) or "Traceback" in told:  # 0: it makes fewer calls
            trouble: str | None = f"exit code {code}: {told[-300:]}"
        else:
            trouble = finish(work, folder / "data", place / "out", whole, log)
        yield trouble and f"{work.name}, {name} at call {at}{', short write' if short else ''}: {trouble}"
        shutil.rmtree(place)


def _a_run(root: Path) -> None:
    make_run(root / "run")


EXPORT = Work("export", _a_run, lambda data, out: ["export", f"{data}/run", "--out", f"{out}"])

for work, full, quick in ((WORKS[0], 100, 0), (WORKS[1], 100, 2), (WORKS[2], 100, 1), (EXPORT, 100, 0)):
    ROWS.append(Row(7, f"disk errors: {work.name}", full, quick, partial(errors, work)))
