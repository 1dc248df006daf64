"""Some samples of a data set, drawn at random once and for all."""

from __future__ import annotations

import numpy as np
import torch

from tilework.core.batch import Batch, Stage
from tilework.core.errors import ConfigError
from tilework.core.rng import words
from tilework.data.source import Source


class Part:
    """`count` samples of a source; a larger part holds every smaller one."""

    def __init__(self, source: Source, count: int) -> None:
        if not 0 < count <= len(source):
            raise ConfigError(f"{count} samples were asked for, the data have {len(source)}", "lower 'samples'")
        self.source = source
        drawn = words(0, 0, np.arange(len(source)), "part", 2)  # (N, 2)
        self.index = np.sort(np.lexsort((drawn[:, 1], drawn[:, 0]))[:count])

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

    def __len__(self) -> int:
        return len(self.index)

    def batch(self, index: np.ndarray) -> Batch:
        """Samples by their number in the part; they keep their global index. index: (B,) int64."""
        return self.source.batch(self.index[index])
