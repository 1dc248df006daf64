"""What training and evaluation read from.

B batch | H, W grid | K codes | C code dim
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from tilework.core.batch import Batch, Stage


class Source(Protocol):
    """A data set that gives any set of its samples as a batch on the host."""

    stage: Stage  # "ids" or "pixels"
    grid: tuple[int, int]
    together: int  # samples worth reading in one call
    codebook: torch.Tensor | None  # (K, C) for ids

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of their numbers."""

    def __len__(self) -> int: ...

    def batch(self, index: np.ndarray) -> Batch:
        """Samples by their global index. index: (B,) int64."""
