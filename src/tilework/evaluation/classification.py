"""What a classifier says of every sample of a data set.

N samples | K classes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from tilework.augment import AnyStep
from tilework.core.batch import Batch
from tilework.core.distributed import World
from tilework.data import Source
from tilework.evaluation.confusion import class_accuracy, count_pairs
from tilework.evaluation.evaluator import INDEX, Evaluator
from tilework.evaluation.loop import evaluate
from tilework.models import Output


@dataclass(frozen=True)
class Classification:
    """What a classifier said of every sample."""

    probabilities: np.ndarray  # (N, K) float32
    labels: np.ndarray  # (N,) int64
    classes: tuple[str, ...]
    numbers: np.ndarray  # (N,) int64, of the samples in the data, where those that cannot be decoded are left out

    def top(self, k: int) -> float:
        """Share of samples whose label is among the k most probable classes."""
        order = np.argsort(-self.probabilities, axis=1, kind="stable")[:, :k]
        return float((order == self.labels[:, None]).any(1).mean())

    @property
    def predicted(self) -> np.ndarray:
        """The most probable class of each sample, (N,)."""
        return self.probabilities.argmax(1)

    @property
    def confusion(self) -> np.ndarray:
        """Counts, (K, K): rows are true classes, columns are predictions."""
        true, predicted = (torch.from_numpy(x) for x in (self.labels, self.predicted))
        return count_pairs(true, predicted, len(self.classes)).numpy()

    def summary(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        counts = torch.from_numpy(self.confusion)
        hits = [
            hit if there else None for hit, there in zip(class_accuracy(counts).tolist(), counts.sum(1), strict=True)
        ]
        return {
            "images": len(self.labels),
            "top1": self.top(1),
            **({"top5": self.top(5)} if len(self.classes) > 5 else {}),  # of fewer classes it says nothing
            "per_class": dict(zip(self.classes, hits, strict=True)),  # None for a class that does not occur
            "confusion": self.confusion.tolist(),
        }


class Classified(Evaluator[Output]):
    """The probabilities of every sample, as a `Classification`."""

    def __init__(self, classes: tuple[str, ...]) -> None:
        super().__init__()
        self.classes = classes

    def update(self, batch: Batch, output: Output) -> None:
        """See the logits of a batch."""
        self.keep(batch, probabilities=output.logits.float().softmax(-1), labels=batch.target.ids[:, 0])

    def result(self) -> Classification:
        """In the order of the data."""
        probabilities, labels, numbers = (self.rows(name).cpu().numpy() for name in ("probabilities", "labels", INDEX))
        return Classification(probabilities, labels, self.classes, numbers)

    def compute(self) -> dict[str, float]:
        """Top-1 and top-5 accuracy."""
        result = self.result()
        return {"top1": result.top(1), "top5": result.top(5)}


def classify(
    model: nn.Module, source: Source, steps: Sequence[AnyStep], device: torch.device, batch: int = 256
) -> Classification:
    """Run a classifier over a data set, in order."""
    model.to(device).eval()
    evaluator = Classified(source.classes)
    evaluate(lambda part: model(part.x), source, steps, [evaluator], World(0, 1, device), batch)
    return evaluator.result()
