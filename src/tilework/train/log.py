"""What a run says while it goes on: JSON lines in a file, and a bar or plain lines for people."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tilework.core.files import write


def notice(text: str, quiet: bool = False) -> None:
    """A line for people, beside the output of a command."""
    if not quiet:
        print(f"tilework: {text}", file=sys.stderr, flush=True)


def counted(number: int, noun: str) -> str:
    """A number with its noun: '1 image', '1,200 images'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class RunLog:
    """JSON lines of a run, cut back to the step it resumes from, so that no step stands twice."""

    def __init__(self, path: Path, resume_from: int, quiet: bool = False) -> None:
        self.quiet = quiet
        if not quiet:
            lines = path.read_text().splitlines() if path.is_file() else []
            kept = [line for line in lines if (step := _step(line)) is not None and step <= resume_from]
            write(path, "".join(f"{line}\n" for line in kept).encode())
            self._file = path.open("a", buffering=1)

    def write(self, **values: Any) -> None:
        """Append a line."""
        if not self.quiet:
            self._file.write(json.dumps(values) + "\n")

    def close(self) -> None:
        """Flush and close."""
        if not self.quiet:
            self._file.close()


def _step(line: str) -> int | None:
    """Step of a log line; None for one that was cut short when the run was killed."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return None


class Bar:
    """Progress for people: a bar on a terminal, a plain line every few seconds elsewhere."""

    def __init__(self, title: str, total: int, done: int = 0, quiet: bool = False, every: float = 10.0) -> None:
        self.title, self.total, self.every = title, total, every
        self.quiet = quiet
        self._last = time.monotonic()
        self._bar: Progress | None = None
        if not quiet and sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task(title, total=total, completed=done, note="")

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Show where things stand; `total` is what the bar was made with."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done)
            if note:
                self._bar.update(self._task, note=note)
        elif not self.quiet and (time.monotonic() - self._last > self.every or done == self.total):
            self._last = time.monotonic()
            print(f"{self.title} {done}/{self.total} {note}".rstrip(), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
