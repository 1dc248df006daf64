"""The log of a run: JSON lines in a file, truncated to the step that it resumes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tilework.core.console import Bar, counted, notice
from tilework.core.files import write

__all__ = ["Bar", "RunLog", "counted", "notice"]


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
