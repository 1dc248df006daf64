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

    @property
    def stage(self) -> Stage:
        """What its samples are: "ids", "stacks" of them or "pixels"."""

    @property
    def grid(self) -> tuple[int, int]:
        """Of codes or pixels."""

    @property
    def together(self) -> int:
        """Samples worth reading in one call."""

    @property
    def codebook(self) -> torch.Tensor | None:
        """(K, C) for ids."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of their numbers."""

    def __len__(self) -> int: ...

    def batch(self, index: np.ndarray) -> Batch:
        """Samples by their global index. index: (B,) int64."""


class Around:
    """A data set made of another one, with its kind, grid, codes and classes."""

    source: Source

    @property
    def stage(self) -> Stage:
        """The source's."""
        return self.source.stage

    @property
    def grid(self) -> tuple[int, int]:
        """The source's."""
        return self.source.grid

    @property
    def together(self) -> int:
        """The source's."""
        return self.source.together

    @property
    def codebook(self) -> torch.Tensor | None:
        """The source's, (K, C)."""
        return self.source.codebook

    @property
    def classes(self) -> tuple[str, ...]:
        """The source's, whether they occur or not."""
        return self.source.classes
