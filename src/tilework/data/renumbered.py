"""Codes of a store by the numbers of another codebook that holds all of them."""

from __future__ import annotations

import numpy as np
import torch

from tilework.core.batch import Batch
from tilework.core.codebook import Codebook
from tilework.data.source import Around, Source


class Renumbered(Around):
    """The same samples; their codes are positions in a larger codebook."""

    def __init__(self, source: Source, codebook: Codebook, positions: np.ndarray) -> None:
        self.source, self._codebook = source, codebook
        self.positions = torch.from_numpy(positions.astype(np.int32))  # (K,) of each code of the source

    @property
    def codebook(self) -> Codebook:
        """The larger one."""
        return self._codebook

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, index: np.ndarray) -> Batch:
        """Samples by their index. index: (B,) int64."""
        batch = self.source.batch(index)
        return batch.changed(x=self.positions[batch.x.long()])
