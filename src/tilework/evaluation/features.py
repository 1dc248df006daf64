"""Frozen features of a data set.

N samples | D width
"""

from __future__ import annotations

from torch import Tensor

from tilework.core.batch import Batch
from tilework.evaluation.evaluator import Evaluator
from tilework.models import Output


class Features(Evaluator[Output]):
    """The mean of the last tokens of every sample, and its label."""

    def update(self, batch: Batch, output: Output) -> None:
        """See the tokens of a batch."""
        self.keep(batch, features=output.tokens.float().mean(1), labels=batch.target.ids[:, 0])

    def pair(self) -> tuple[Tensor, Tensor]:
        """Features, (N, D), and labels, (N,), in the order of the data, both on the device."""
        return self.rows("features"), self.rows("labels")

    def compute(self) -> dict[str, float]:
        """How many samples there are."""
        return {"samples": len(self.rows("labels"))}
