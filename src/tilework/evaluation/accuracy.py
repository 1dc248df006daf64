"""Accuracy of a classifier.

B batch | K classes
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from tilework.core.batch import Batch
from tilework.evaluation.averages import Means
from tilework.models import Output
from tilework.objectives import soft_cross_entropy


class Accuracy(Means[Output]):
    """Cross-entropy without smoothing, top-1 and, of more than five classes, top-5 accuracy."""

    def update(self, batch: Batch, output: Output) -> None:
        """See the logits of a batch."""
        logits, labels = output.logits, batch.target.ids[:, 0]
        scores = {"loss": soft_cross_entropy(logits, batch.target), "top1": topk_hits(logits, labels, 1)}
        if logits.shape[1] > 5:  # of fewer classes it says nothing
            scores["top5"] = topk_hits(logits, labels, 5)
        self.score(scores)


def topk_hits(logits: Tensor, labels: Tensor, k: int) -> Tensor:
    """Whether the label is among the k highest logits. logits: (B, K); labels: (B,); returns (B,) float32."""
    return (logits.topk(min(k, logits.shape[1]), -1).indices == labels[:, None]).any(1).to(torch.float32)


def interval(share: float, count: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson, 1927)."""
    z, n = 1.96, max(1, count)
    middle, half = share + z * z / (2 * n), z * sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))
