"""Means of scores over samples.

B batch
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tilework.core.batch import Batch
from tilework.evaluation.evaluator import Answer, Evaluator

SAMPLES = "number of samples"  # no score has such a name


class Means(Evaluator[Answer]):
    """An evaluator whose figures are the means of scores that each sample has; subclasses say which."""

    def score(self, scores: Mapping[str, Tensor]) -> None:
        """Scores of the samples of a batch, each (B,). For `update`."""
        for name, value in scores.items():
            self.add(**{name: value.double().sum()})
        first = next(iter(scores.values()))
        self.add(**{SAMPLES: torch.full((), len(first), device=first.device)})

    def compute(self) -> dict[str, float]:
        """The mean of each score."""
        names = [name for name in self._sums if name != SAMPLES]
        means = torch.stack([self.total(name) for name in names]) / self.total(SAMPLES)
        return dict(zip(names, means.tolist(), strict=True))


class Averages(Means[Mapping[str, Tensor]]):
    """Means of what was asked for: scores of each sample, as an objective gives them."""

    def update(self, batch: Batch, output: Mapping[str, Tensor]) -> None:
        """See the scores of a batch, each (B,)."""
        self.score(output)
