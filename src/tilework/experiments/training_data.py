"""What a row of a table draws its training images from: their labels, and what they take in storage.

N images
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilework.core.location import Location, Url, is_store
from tilework.data import ImageFolder, TokenSource
from tilework.data.detected import open_objects
from tilework.data.fingerprint import fingerprint_of
from tilework.data.image_folder import Level
from tilework.data.masked import COLUMN
from tilework.data.pairs import PairFolder, open_pairs
from tilework.store import Store


@dataclass(frozen=True)
class TrainingData:
    """A token store, a folder of images, or images with masks, none of them read."""

    labels: np.ndarray  # (N,) class numbers; 0 where only pixels have classes
    classes: int
    bytes: dict[str, float]  # per image, by what is stored: images or tokens (with codebook and tables), and masks
    fingerprint: str  # by which it is known again: with the sizes of files, so that other pictures show

    @staticmethod
    def fingerprints(train: Location, val: Location) -> dict[str, str]:
        """Of training and validation data, as settings of an experiment keep them."""
        return {"train": TrainingData.look(train).fingerprint, "val": TrainingData.look(val).fingerprint}

    @staticmethod
    def look(data: Location, level: Level = "leaf") -> TrainingData:
        """At a path or a URL. level: of nested class folders."""
        if isinstance(data, Url) or is_store(data):
            store = Store(data)
            source, sizes = TokenSource(store, None), store.sizes
            stored = {"tokens": sizes["tokens"] + sizes["codebook"]}
            if masks := store.column_bytes(COLUMN):
                stored["masks"] = masks
            known = fingerprint_of(store, source.labels, source.classes)
            return TrainingData(source.labels, len(source.classes), _each(stored, len(store)), known)
        folder = open_pairs(data) or open_objects(data) or ImageFolder.open(data, None, level)
        stored = {"images": folder.bytes}
        if isinstance(folder, PairFolder):
            stored["masks"] = folder.mask_bytes
        known = f"{fingerprint_of(folder, folder.labels, folder.classes)}:{sum(stored.values())}"
        return TrainingData(folder.labels, len(folder.classes), _each(stored, len(folder)), known)


def _each(stored: dict[str, int], images: int) -> dict[str, float]:
    return {what: round(size / images, 1) for what, size in stored.items()}
