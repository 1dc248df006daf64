"""The log of a run: JSON lines, truncated to the step that it resumes from; the same as CSV, and for TensorBoard."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from tilework.core.console import Bar, counted, notice
from tilework.core.errors import MachineError
from tilework.core.files import write

__all__ = ["Bar", "RunLog", "counted", "notice", "read_log"]

TABLE, EVENTS = "log.csv", "tensorboard"


class RunLog:
    """JSON lines of a run, no step twice; when it ends, or is stopped, log.csv has them as a table."""

    def __init__(self, path: Path, resume_from: int, quiet: bool = False, tensorboard: bool = False) -> None:
        self.path, self.quiet = path, quiet
        self._events: Any = None
        if not quiet:
            kept = read_log(path, resume_from)
            write(path, "".join(f"{json.dumps(line)}\n" for line in kept).encode())
            self._events = _summary_writer(path.with_name(EVENTS), resume_from) if tensorboard else None
            self._file = path.open("a", buffering=1)

    def write(self, **values: Any) -> None:
        """Append a line."""
        if not self.quiet:
            self._file.write(json.dumps(values) + "\n")
        if self._events is not None:
            for name, value in values.items():
                if name not in ("step", "epoch") and isinstance(value, int | float):
                    self._events.add_scalar(name.replace("val_", "val/"), value, values["step"])

    def close(self) -> None:
        """Flush, write the table, and close."""
        if not self.quiet:
            self._file.close()
            write(self.path.with_name(TABLE), as_csv(read_log(self.path)).encode())
        if self._events is not None:
            self._events.close()


def read_log(path: Path, until: int | None = None) -> list[dict[str, Any]]:
    """Lines of a log up to a step; those cut short when a run was killed are left out."""
    lines = path.read_text().splitlines() if path.is_file() else []
    found = [line for line in map(_parsed, lines) if line is not None]
    return [line for line in found if until is None or line["step"] <= until]


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        values: dict[str, Any] = json.loads(line)
        values["step"] = int(values["step"])
        return values
    except (ValueError, KeyError, TypeError):
        return None


def as_csv(lines: list[dict[str, Any]]) -> str:
    """A table with a column for every value that occurs; a step's line of validation is joined to its own."""
    rows: dict[int, dict[str, Any]] = {}
    for line in lines:
        rows.setdefault(line["step"], {}).update(line)
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows[step] for step in sorted(rows))
    return text.getvalue()


def _summary_writer(folder: Path, resume_from: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MachineError(
            "--tensorboard needs a package that is not here", "pip install 'tilework[tensorboard]'"
        ) from error
    return SummaryWriter(str(folder), purge_step=resume_from + 1)
