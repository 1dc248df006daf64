"""The best validation figure of a run so far, as its log has it: for the best checkpoint and for stopping early."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Best:
    """Follows one figure; a run that resumes sees the lines of its log again."""

    def __init__(self, metric: str, higher: bool, lines: Iterable[Mapping[str, Any]] = ()) -> None:
        self.metric, self.higher = metric, higher
        self.value: float | None = None
        self.step = 0
        self.stale = 0  # evaluations since the best one
        for line in lines:
            if f"val_{metric}" in line:
                self.see(int(line["step"]), {metric: line[f"val_{metric}"]})

    def see(self, step: int, figures: Mapping[str, float]) -> bool:
        """Whether an evaluation is the best so far; equal ones are not."""
        value = figures.get(self.metric)
        if value is None or value != value:  # not a number
            self.stale += 1
            return False
        value = round(value, 6)  # as it is logged
        if self.value is None or (value > self.value if self.higher else value < self.value):
            self.value, self.step, self.stale = value, step, 0
            return True
        self.stale += 1
        return False
