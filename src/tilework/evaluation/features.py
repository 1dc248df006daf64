"""Frozen features of a data set.

N samples | D width
"""

from __future__ import annotations

from torch import Tensor

from tilework.core.batch import Batch
from tilework.evaluation.evaluator import Evaluator
from tilework.models import Output


class Features(Evaluator[Output]):
    """What a head reads of every sample, and its label: the class token, or the mean of the last tokens."""

    def update(self, batch: Batch, output: Output) -> None:
        """See the tokens of a batch."""
        read = output.tokens.float().mean(1) if output.class_token is None else output.class_token.float()
        self.keep(batch, features=read, labels=batch.target.ids[:, 0])

    def pair(self) -> tuple[Tensor, Tensor]:
        """Features, (N, D), and labels, (N,), in the order of the data, both on the device."""
        return self.rows("features"), self.rows("labels")

    def compute(self) -> dict[str, float]:
        """How many samples there are."""
        return {"samples": len(self.rows("labels"))}
