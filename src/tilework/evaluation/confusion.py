"""Which classes are taken for which.

B batch | K classes
"""

from __future__ import annotations

import torch
from torch import Tensor

from tilework.core.batch import Batch
from tilework.evaluation.evaluator import Evaluator
from tilework.models import Output


class Confusion(Evaluator[Output]):
    """Counts of true and predicted classes, and the accuracy of each class."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def update(self, batch: Batch, output: Output) -> None:
        """See the logits of a batch."""
        self.add(counts=count_pairs(batch.target.ids[:, 0], output.logits.argmax(-1), self.classes))

    @property
    def counts(self) -> Tensor:
        """(K, K): rows are true classes, columns are predictions."""
        return self.total("counts")

    def compute(self) -> dict[str, float]:
        """Accuracy over samples, and its mean over the classes that occur."""
        there = self.counts.sum(1) > 0
        accuracy = self.counts.diagonal().sum() / self.counts.sum()
        return {"accuracy": float(accuracy), "mean_accuracy": float(class_accuracy(self.counts)[there].mean())}


def count_pairs(true: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Counts of each pair of classes, (K, K); labels outside the classes, as void ones, are left out.

    true, predicted: integers of one shape, of images or of pixels.
    """
    true, predicted = true.flatten().long(), predicted.flatten().long()
    known = (true >= 0) & (true < classes)
    pair = torch.where(known, true * classes + predicted, classes**2)  # void pairs last, dropped below
    counts = torch.zeros(classes**2 + 1, dtype=torch.int64, device=pair.device)
    counts.index_add_(0, pair, torch.ones_like(pair))  # unlike bincount, does not wait for the device
    return counts[:-1].view(classes, classes)


def class_accuracy(counts: Tensor) -> Tensor:
    """Share of each class that is predicted right, (K,) float64; 0 for one that does not occur. counts: (K, K)."""
    return counts.diagonal().double() / counts.sum(1).clamp(min=1)
