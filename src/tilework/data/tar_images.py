"""Images inside tar files (WebDataset): `KEY.jpg` with its class number in `KEY.cls`, or in `KEY.json` under "label".

N images
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilework.core.errors import InputError
from tilework.data.image_files import SUFFIXES, ImageBytes
from tilework.data.labels import number_labels
from tilework.data.tar_files import TarIndex, index_tars, read_at

NAMES = "classes.txt"  # beside the tar files: a class per line, in the order of the numbers
LARGEST_NAMES = 1 << 26  # bytes


@dataclass(frozen=True)
class TarImages:
    """Images of tar files, in the order in which they lie there."""

    index: TarIndex
    labels: np.ndarray  # (N,) int64
    classes: tuple[str, ...]

    @staticmethod
    def open(tars: Sequence[Path], classes: Sequence[str] | None = None) -> TarImages:
        """List some tar files; with `classes`, number them as given and refuse others."""
        index = index_tars(tars, [suffix[1:] for suffix in SUFFIXES])
        if not index.keys:
            raise InputError(f"{tars[0]} holds no images", f"files ending in {', '.join(SUFFIXES)} are read")
        labels, names = number_labels(str(tars[0].parent), index.found, class_names(tars[0].parent), classes)
        return TarImages(index, labels, names)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def keys(self) -> tuple[str, ...]:
        """The name of each image: that of its file up to the first dot."""
        return self.index.keys

    def key(self, index: int) -> str:
        """The name of one image."""
        return self.index.keys[index]

    def files(self, index: Sequence[int]) -> Iterator[ImageBytes]:
        """The files of some images, one at a time."""
        for i, data in zip(index, self.index.read(index), strict=True):
            yield ImageBytes(data, self.key(i))


def class_names(folder: Path) -> tuple[str, ...] | None:
    """Names of the classes of a folder of tar files, if they are told."""
    path = folder / NAMES
    if not path.is_file():
        return None
    try:
        names = tuple(read_at(path, 0, min(path.stat().st_size, LARGEST_NAMES)).decode().split("\n"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no text", str(error)) from error
    names = tuple(name.strip() for name in names if name.strip())
    if len(set(names)) < len(names) or not names:
        raise InputError(f"{path} has no class, or one twice", "give a name per line")
    return names
