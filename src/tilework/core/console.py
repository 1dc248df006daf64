"""What a running command says on stderr: progress and notices; stdout is kept for results. Needs no torch."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from tilework.core.errors import printable

if TYPE_CHECKING:
    from rich.progress import Progress


def notice(text: str, quiet: bool = False) -> None:
    """Print a line to stderr, which keeps stdout for results."""
    if not quiet:
        print(f"tilework: {printable(text)}", file=sys.stderr, flush=True)


def counted(number: int, noun: str) -> str:
    """A number with its noun: '1 image', '1,200 images'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class Bar:
    """Progress: a bar on a terminal, a plain line every `every` seconds elsewhere."""

    def __init__(self, title: str, total: int, done: int = 0, quiet: bool = False, every: float = 10.0) -> None:
        self.title, self.total, self.every = title, total, every
        self.quiet = quiet
        self._last = time.monotonic()
        self._bar: Progress | None = None
        if not quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task(title, total=total, completed=done, note="")

    @property
    def live(self) -> bool:
        """Whether it is a bar, which replaces what it showed."""
        return self._bar is not None

    def update(self, done: int, total: int | None = None, note: str = "", now: bool = False) -> None:
        """Show progress; `total` is ignored, so that this fits as a (done, total) callback. now: do not wait."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done)
            if note:
                self._bar.update(self._task, note=note)
        elif not self.quiet and (now or time.monotonic() - self._last > self.every or done == self.total):
            self._last = time.monotonic()
            print(f"{self.title} {done}/{self.total} {note}".rstrip(), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Stop drawing."""
        if self._bar is not None:
            self._bar.stop()
