"""Row 7: a disk that is full, broken or forbidden, at any call: the old state stays, and the next run ends well."""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from faults.kills import NAMED, Work, finish, train_words, undisturbed
from faults.matrix import ROWS, Row, Trials
from faults.processes import contents, ended, launch
from faults.things import make_run

CALLS = ("fsync", "mkdir", "rename", "replace", "open to write", "write")
ERRORS = (  # name: number, whether half of the bytes are written first
    ("ENOSPC", (errno.ENOSPC, False)),
    ("ENOSPC after a short write", (errno.ENOSPC, True)),
    ("EIO", (errno.EIO, False)),
    ("EACCES", (errno.EACCES, False)),
)
EVERY = 1_000_000


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


def break_disk(
    number: int, code: int, short: bool, below: Path, count: Callable[[int], object] = lambda calls: None
) -> None:
    """From now on the nth call that changes a file below a directory fails, and so do all later ones of its kind.

    count: called with the number of each call.
    """
    calls, broken = 0, ""
    real_open = io.open

    def fails(kind: str) -> bool:
        nonlocal calls, broken
        calls += 1
        count(calls)
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


def calls_of(words: list[str], below: Path, log: Path) -> int:
    """Calls that a command makes to change files below a directory."""
    counted = below.with_name("calls")

    def before() -> None:
        break_disk(0, 0, False, below, lambda number: counted.write_text(str(number)))

    below.mkdir(exist_ok=True)
    ended(launch(words, log, before))
    shutil.rmtree(below)
    return int(counted.read_text())


def errors(work: Work, count: int, rng: np.random.Generator, folder: Path) -> Trials:
    """A command on a disk that fails ends by one line and the code for output; on a sound disk it then ends well.

    Every call with every error, in random order.
    """
    whole, log = undisturbed(work, folder), folder / "log-trial.txt"
    calls = calls_of(work.words(folder / "data", folder / "counted/out"), folder / "counted", log)
    for trial in rng.permutation(calls * len(ERRORS))[:count].tolist():
        place, at, (name, (code, short)) = (
            folder / f"trial-{trial}",
            trial // len(ERRORS) + 1,
            ERRORS[trial % len(ERRORS)],
        )
        place.mkdir()
        log.unlink(missing_ok=True)
        words = work.words(folder / "data", place / "out")
        found = ended(launch(words, log, partial(break_disk, at, code, short, place)))
        told = log.read_text()
        trouble: str | None = None
        if found not in (0, 7) or "Traceback" in told:
            trouble = f"exit code {found}: {told[-300:]}"
        elif found == 0 and contents(place / "out", work.result) != whole:  # 0: the call did not matter
            trouble = "other content, unnoticed"
        elif found == 7:
            trouble = finish(work, folder / "data", place / "out", whole, log)
        yield trouble and f"{work.name}, {name} at call {at} of {calls}: {trouble}"
        shutil.rmtree(place)


def _a_run(root: Path) -> None:
    make_run(root / "run")


def _report(data: Path, out: Path) -> list[str]:
    out.mkdir(parents=True, exist_ok=True)
    return ["report", f"{data}/run", "--out", f"{out}/page.html"]


EXPORT = Work("export", _a_run, lambda data, out: ["export", f"{data}/run", "--out", f"{out}"])
REPORT = Work("report", _a_run, _report)
TRAINING = replace(NAMED["training"], words=partial(train_words, steps=4))
TRIED = {TRAINING: 0, NAMED["tokenize"]: 2, NAMED["convert"]: 1, NAMED["seal"]: 0, EXPORT: 0, REPORT: 0}

for work, quick in TRIED.items():
    ROWS.append(Row(7, f"disk errors: {work.name}", EVERY, quick, partial(errors, work)))
