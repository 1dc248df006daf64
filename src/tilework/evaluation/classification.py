"""Accuracy and confusion of a classifier.

N samples | K classes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from tilework.augment import Step, apply_all
from tilework.core.rng import Draws
from tilework.data import Source, in_order


@dataclass(frozen=True)
class Classification:
    """What a classifier said of every sample."""

    probabilities: np.ndarray  # (N, K) float32
    labels: np.ndarray  # (N,) int64
    classes: tuple[str, ...]

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
        count = len(self.classes)
        pairs = self.labels * count + self.predicted
        return np.bincount(pairs, minlength=count * count).reshape(count, count)

    def summary(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        hits = np.diag(self.confusion) / np.maximum(1, self.confusion.sum(1))
        return {
            "images": len(self.labels),
            "top1": self.top(1),
            "top5": self.top(5),
            "per_class": {name: float(hit) for name, hit in zip(self.classes, hits, strict=True)},
            "confusion": self.confusion.tolist(),
        }


@torch.inference_mode()
def classify(
    model: nn.Module, source: Source, augment: Sequence[Step[Any]], device: torch.device, batch: int = 256
) -> Classification:
    """Run a classifier over a data set, in order."""
    model.to(device).eval()
    probabilities, labels = [], []
    for part in in_order(source, batch):
        part = part.to(device)
        logits = model(apply_all(augment, part, Draws(0, 0, part.index)).x).logits
        probabilities.append(logits.float().softmax(-1).cpu().numpy())
        labels.append(part.target.ids[:, 0].cpu().numpy())
    return Classification(np.concatenate(probabilities), np.concatenate(labels), source.classes)
