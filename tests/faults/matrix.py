"""Rows of the fault matrix, and how they are counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

Trials = Iterator[str | None]  # of each trial: None if it passed, or what went wrong
KEPT = 20  # failures of a row that are told in full


@dataclass(frozen=True)
class Row:
    """One kind of fault. trials(count, rng, folder) tries so many of them in a folder of its own."""

    number: int  # of docs/faults.md
    name: str
    full: int  # trials of a nightly run
    quick: int  # trials of `make test`
    trials: Callable[[int, np.random.Generator, Path], Trials]
    seconds: float = 0.0  # of a nightly run, in place of a number of trials
    guided: Callable[[float, int, Path], Trials] | None = None  # so many seconds of trials that coverage chooses


@dataclass
class Outcome:
    """What a row gave."""

    row: str
    tried: int = 0
    passed: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    seeds: int = 0  # that trials were drawn with, one after another
    whole: bool = False  # whether every place there is was tried

    def count(self, trouble: str | None) -> None:
        """Add a trial."""
        self.tried += 1
        self.passed += trouble is None
        if trouble is not None and len(self.failures) < KEPT:
            self.failures.append(trouble)

    def plus(self, more: Outcome) -> Outcome:
        """Both, of other seeds."""
        tried, passed, seconds = self.tried + more.tried, self.passed + more.passed, self.seconds + more.seconds
        failures = (self.failures + more.failures)[:KEPT]
        return Outcome(self.row, tried, passed, round(seconds, 1), failures, self.seeds + 1, more.whole)


ROWS: list[Row] = []
