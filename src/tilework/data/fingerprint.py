"""A hash by which a run knows its data again, wherever they lie."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import numpy as np

from tilework.data.image_folder import Images
from tilework.data.source import Source, innermost
from tilework.data.tokens import TokenSource
from tilework.store import Store

MADE_BY = "2:"  # what fingerprints begin with; others are of versions that knew less of the data
NAMES = 100_000  # of images that count, evenly spaced: a folder of millions is not read for it
TAUGHT = ("label", "mask", "boxes", "sides")  # columns of a store that say what is learnt; others may be added


def fingerprint(source: Source) -> str:
    """Of the codes of a store or the names of images, their labels, masks or boxes, and the names of classes."""
    inner = innermost(source)
    if isinstance(inner, TokenSource):
        return fingerprint_of(inner.store, source.labels, source.classes)
    folder = getattr(inner, "folder", None)  # sources that people write themselves may have none
    return fingerprint_of(folder, source.labels, source.classes)


def fingerprint_of(data: Store | Images | None, labels: np.ndarray, classes: Sequence[str]) -> str:
    """The same of a store or a folder. labels: (N,) class numbers."""
    found = sha256()
    for text in (str(len(labels)), *classes, *_told(data)):
        found.update(text.encode("utf-8", "surrogateescape") + b"\0")
    found.update(np.asarray(labels, "<i8").tobytes())
    return MADE_BY + found.hexdigest()


def _told(data: Store | Images | None) -> list[str]:
    if isinstance(data, Store):
        starts = ("shards/", *(f"columns/{name}." for name in TAUGHT), *(f"columns/{name}/" for name in TAUGHT))
        return [file.sha256 for name, file in sorted(data.manifest.files.items()) if name.startswith(starts)]
    if data is None:
        return []
    some = np.unique(np.linspace(0, len(data) - 1, min(len(data), NAMES)).astype(np.int64)).tolist()
    masks, objects = getattr(data, "masks", ()), getattr(data, "objects", ())
    sizes = [str(masks[i] and masks[i].stat().st_size) for i in some] if masks else []
    known = [objects[i] for i in some] if objects else []  # None: annotations that cannot be read
    boxes = ["" if one is None else sha256(one.edges.tobytes() + one.labels.tobytes()).hexdigest() for one in known]
    return [*(data.key(number) for number in some), *sizes, *boxes]
