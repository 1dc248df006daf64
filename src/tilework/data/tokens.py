"""Token stores as training data: ids stay integers until the device.

B batch | H, W code grid | K codes | C code dim
"""

from __future__ import annotations

import numpy as np
import torch

from tilework.core.batch import Batch, Stage, Target
from tilework.core.errors import InputError
from tilework.store import Store


class TokenSource:
    """The codes and labels of a store."""

    stage: Stage = "ids"

    def __init__(self, store: Store, classes: tuple[str, ...] | None = None) -> None:
        self.store = store
        self.grid = store.grid
        self.classes = store.classes
        if classes is not None and classes != store.classes:
            raise InputError(f"{store.path} has other classes than training", "tokenize it like the training store")
        self.codebook: torch.Tensor | None = torch.from_numpy(store.codebook)  # (K, C)
        self.labels = store.column("label")

    def __len__(self) -> int:
        return len(self.store)

    def batch(self, index: np.ndarray) -> Batch:
        """x: (B, H, W) int32."""
        return Batch(
            torch.from_numpy(self.store.batch(index)),
            Target.hard(torch.from_numpy(self.labels[index].astype(np.int64))),
            torch.from_numpy(np.asarray(index, np.int64)),
        )
