"""Token stores as training data: ids stay integers until the device.

B batch | H, W code grid | K codes | C code dim
"""

from __future__ import annotations

from math import prod

import numpy as np
import torch

from tilework.core.batch import Batch, Stage, Target
from tilework.core.codebook import Codebook
from tilework.core.errors import InputError
from tilework.core.location import Url
from tilework.data.image_files import Frame
from tilework.data.source import KEEP_BYTES, Stream
from tilework.store import Store

MANY = 10_000_000  # samples, whose order takes a gigabyte


class TokenSource:
    """The codes and labels of a store; every view of an image is a sample of its own. Small stores are decoded once."""

    def __init__(self, store: Store, classes: tuple[str, ...] | None = None, keep: bool = True) -> None:
        self.store = store
        self.stage: Stage = "stacks" if len(store.grid) == 3 else "ids"
        self.grid = (store.grid[0], store.grid[1]) if len(store.grid) > 1 else (1, store.grid[0])
        self.together = store.together  # lanes are what the decoder is fast over
        self.classes = store.classes if classes is None else classes
        self.codebook: Codebook | None = store.codebook
        self._count = len(store) * store.views
        shape, kind = (self._count, *store.grid), np.dtype(np.uint16 if store.vocabulary <= 1 << 16 else np.int32)
        self._kept = np.empty(shape, kind) if keep and prod(shape) * kind.itemsize <= KEEP_BYTES else None
        self._known = np.zeros(self._count, bool)  # which samples are in it; memory is taken as they come
        self._labels = store.column("label")  # of each image
        if classes is not None and classes != store.classes:  # fewer, perhaps, or by other numbers
            there = {store.classes[label] for label in np.unique(self._labels).tolist()}
            if unknown := sorted(there - set(classes)):
                what = f"{store.path} has other classes than training: '{unknown[0]}' is unknown"
                raise InputError(what, "tokenize it like the training store")
            known = {name: i for i, name in enumerate(classes)}
            self._labels = np.array([known.get(name, 0) for name in store.classes])[self._labels]

    @property
    def frame(self) -> Frame:
        """How its images filled the tokenizer's input."""
        return self.store.manifest.frame

    @property
    def stream(self) -> Stream:
        """Shards of the store."""
        store = self.store
        far = isinstance(store.path, Url) or len(self) >= MANY
        sizes = np.array([shard.records for shard in store.manifest.shards])
        return Stream(sizes, store.manifest.shuffled and far, store.manifest.shuffled, store.keep_open)

    @property
    def labels(self) -> np.ndarray:
        """Class number of each sample, (N,)."""
        return np.repeat(self._labels, self.store.views)

    def __len__(self) -> int:
        return self._count

    def batch(self, index: np.ndarray) -> Batch:
        """x: (B, H, W) int32, or (B, C, H, W) where a position has several codes."""
        index = np.asarray(index, np.int64)
        ids = torch.from_numpy(self._codes(index).reshape(-1, *self.grid, *self.store.grid[2:]))
        return Batch(
            ids.permute(0, 3, 1, 2) if self.stage == "stacks" else ids,
            Target.hard(torch.from_numpy(self._labels[index // self.store.views].astype(np.int64))),
            torch.from_numpy(index),
        )

    def _codes(self, index: np.ndarray) -> np.ndarray:
        """Of any samples, (B, *grid) int32. index: (B,)."""
        if self._kept is None or not np.all((index >= 0) & (index < self._count)):  # which the store refuses
            return self.store.batch(*np.divmod(index, self.store.views))
        new = np.unique(index[~self._known[index]])
        if len(new):
            self._kept[new] = self.store.batch(*np.divmod(new, self.store.views))
            self._known[new] = True
        return self._kept[index].astype(np.int32)
