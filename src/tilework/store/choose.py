"""Choice of the codec of a store: the one with the fewest bytes on a sample, tables included.

N images in all | B images of the sample | T tokens per image
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilework.core.compiled import kernels
from tilework.core.errors import InputError
from tilework.store.codec import KERNELS, Codec, codecs

SAMPLE_TOKENS = 1 << 22
FAST = ("packed", "rans", "rans-context", "mix")  # choices of "auto": all decode faster than a model trains
RUN = 16  # records that follow each other in a sample: some codecs tell a record by the one before
HELD_OUT = 8  # one in so many runs is measured, not fitted to, where there are more images than the sample
WORTH_LEARNING = 1 << 17  # codes; fewer do not pay for a network
STACKED = ("packed", "rans", "rans-stack")  # the same for several codes per position


def choose_codec(
    name: str, ids: np.ndarray, vocabulary: int, columns: int, images: int = 0, among: Sequence[str] = FAST
) -> tuple[str, Codec]:
    """The codec named, or the smallest of some for "auto", fitted to a sample.

    ids: (N, T), all of them or a sample; images: number of all, where that is more.
    """
    names = among if name == "auto" else (name,)
    every = -(-ids.size // SAMPLE_TOKENS)
    held = np.zeros(len(ids), bool)
    if len(names) > 1 and len(ids) > RUN and max(images, every * len(ids)) > len(ids):  # more than is fitted to
        held[runs(len(ids), HELD_OUT)] = True  # large tables know their sample too well
    sample = ids[~held][runs(int((~held).sum()), every)]
    fitted: dict[str, Codec] = {}
    for one in names:
        if name == "auto" and one == "mix" and (ids.size < WORTH_LEARNING or kernels(KERNELS) is None):
            continue
        try:
            fitted[one] = codecs[one].fit(sample.astype(np.int32), vocabulary, columns)
        except InputError:  # not for this vocabulary
            if name != "auto":
                raise
    if len(fitted) == 1:
        return next(iter(fitted.items()))
    measured = ids[held] if held.any() else ids
    measured = measured[runs(len(measured), max(1, len(measured) // 4096))].astype(np.int32)
    return min(fitted.items(), key=lambda entry: _bytes(entry[1], measured, images or len(ids)))


def runs(count: int, every: int) -> np.ndarray:
    """Numbers of the records of one in `every` runs, evenly spread: images often come sorted by class."""
    chosen = (np.arange(0, count, every * RUN)[:, None] + np.arange(RUN)).ravel()
    return chosen[chosen < count]


def _bytes(codec: Codec, measured: np.ndarray, images: int) -> float:
    """Estimated bytes of all images, with their index entries if sizes vary, and of the tables."""
    _, sizes = codec.encode(measured)
    size = float(sizes.mean()) + (2 if sizes.min() < sizes.max() else 0)
    return size * images + sum(table.nbytes for table in codec.tables().values())
