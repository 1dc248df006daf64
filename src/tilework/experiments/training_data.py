"""What a row of a table draws its training images from: their labels, and what they take in storage.

N images
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilework.core.location import Location, Url, is_store
from tilework.data import ImageFolder, TokenSource
from tilework.data.masked import COLUMN
from tilework.data.pairs import PairFolder, open_pairs
from tilework.store import Store


@dataclass(frozen=True)
class TrainingData:
    """A token store, a folder of images, or images with masks, none of them read."""

    labels: np.ndarray  # (N,) class numbers; 0 where only pixels have classes
    classes: int
    bytes: dict[str, float]  # per image, by what is stored: images or tokens (with codebook and tables), and masks

    @staticmethod
    def look(data: Location) -> TrainingData:
        """At a path or a URL."""
        if isinstance(data, Url) or is_store(data):
            store = Store(data)
            source, sizes = TokenSource(store, None), store.sizes
            stored = {"tokens": sizes["tokens"] + sizes["codebook"]}
            if masks := store.column_bytes(COLUMN):
                stored["masks"] = masks
            return TrainingData(source.labels, len(source.classes), _each(stored, len(store)))
        folder = open_pairs(data) or ImageFolder.open(data)
        stored = {"images": folder.bytes}
        if isinstance(folder, PairFolder):
            stored["masks"] = folder.mask_bytes
        return TrainingData(folder.labels, len(folder.classes), _each(stored, len(folder)))


def _each(stored: dict[str, int], images: int) -> dict[str, float]:
    return {what: round(size / images, 1) for what, size in stored.items()}
