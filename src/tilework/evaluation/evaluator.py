"""What every measure of a data set is: it sees batches, is merged over processes, and gives figures.

B batch | N samples seen
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from tilework.core.batch import Batch

Answer = TypeVar("Answer", contravariant=True)  # what was asked of a batch: a model's output, scores of each sample
INDEX = "index"


class Evaluator(Generic[Answer]):
    """Sums over samples, rows kept of each sample, or both; subclasses say of what, and which figures follow."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._rows: dict[str, list[Tensor]] = {}  # by batch

    def update(self, batch: Batch, output: Answer) -> None:
        """See a batch, without waiting for the device."""
        raise NotImplementedError

    def compute(self) -> dict[str, float]:
        """Figures of everything seen."""
        raise NotImplementedError

    def add(self, **values: Tensor) -> None:
        """Add to sums, which begin at zero: in float64, or int64 for counts. For `update`."""
        for name, value in values.items():
            value = value.to(torch.float64 if value.is_floating_point() else torch.int64)
            self._sums[name] = self._sums[name] + value if name in self._sums else value

    def keep(self, batch: Batch, **rows: Tensor) -> None:
        """Keep rows of the samples of a batch, each (B, ...), on the device. For `update`."""
        for name, value in {INDEX: batch.index, **rows}.items():
            self._rows.setdefault(name, []).append(value)

    def total(self, name: str) -> Tensor:
        """A sum over everything seen."""
        return self._sums[name]

    def rows(self, name: str) -> Tensor:
        """Rows of everything seen in the order of the data, (N, ...), whatever came first."""
        order = torch.cat(self._rows[INDEX]).argsort(stable=True)
        return torch.cat(self._rows[name])[order]

    def state(self) -> dict[str, Tensor]:
        """What it has seen, to be joined along the first side: sums as (1, ...), rows as (N, ...)."""
        sums = {name: value[None] for name, value in self._sums.items()}
        return {**sums, **{name: torch.cat(parts) for name, parts in self._rows.items()}}

    def merge(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Take the states of all processes, its own among them, in place of what it has seen."""
        self._sums = {name: torch.cat([state[name] for state in states]).sum(0) for name in self._sums}
        self._rows = {name: [state[name] for state in states] for name in self._rows}

    def clear(self) -> None:
        """Forget all samples, but not the names and shapes of sums and rows."""
        self._sums = {name: torch.zeros_like(value) for name, value in self._sums.items()}
        self._rows = {name: [parts[0][:0]] for name, parts in self._rows.items()}
