"""Output of a running command: JSON lines in a file; progress and notices on stderr."""

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
    """Print a line to stderr, which keeps stdout for results."""
    if not quiet:
        print(f"tilework: {text}", file=sys.stderr, flush=True)


def counted(number: int, noun: str) -> str:
    """A number with its noun: '1 image', '1,200 images'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class RunLog:
    """JSON lines of a run, truncated to the step it resumes from, so that no step is logged twice."""

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
    """Step of a log line; None for a line cut short when the run was killed."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return None


class Bar:
    """Progress: a bar on a terminal, a plain line every `every` seconds elsewhere."""

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
        """Show progress; `total` is ignored, so that this fits as a (done, total) callback."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done)
            if note:
                self._bar.update(self._task, note=note)
        elif not self.quiet and (time.monotonic() - self._last > self.every or done == self.total):
            self._last = time.monotonic()
            print(f"{self.title} {done}/{self.total} {note}".rstrip(), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Stop drawing."""
        if self._bar is not None:
            self._bar.stop()
