"""A store as a map-style data set, for people who keep their own loader."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from tilework.data.tokens import TokenSource
from tilework.store import Store


class TokenDataset(Dataset[tuple[torch.Tensor, int]]):
    """`dataset[i]` is the codes (H, W) of a sample, int64, and its label; a DataLoader reads whole batches at once."""

    def __init__(self, store: Store | Path | str) -> None:
        # each worker would keep codes of its own
        self.source = TokenSource(store if isinstance(store, Store) else Store(store), keep=False)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        return self.__getitems__([index % len(self)])[0]

    def __getitems__(self, index: Sequence[int]) -> list[tuple[torch.Tensor, int]]:
        """Samples of a batch, decoded together; DataLoader calls this where it exists."""
        batch = self.source.batch(np.asarray(index, np.int64))
        return list(zip(batch.x.long(), batch.target.ids[:, 0].tolist(), strict=True))
