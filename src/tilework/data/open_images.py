"""Images to be tokenized, wherever they lie: a folder, tar files (WebDataset) or Parquet files.

N images
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path

import numpy as np

from tilework.core.errors import InputError
from tilework.data.detected import open_objects
from tilework.data.image_files import File
from tilework.data.image_folder import PARTS, ImageFolder, Images, Level
from tilework.data.pairs import open_pairs
from tilework.data.parquet_images import ParquetImages
from tilework.data.tar_images import TarImages

PACKED = (".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz")


def open_images(
    source: Path, labels: Path | None = None, classes: Sequence[str] | None = None, level: Level = "leaf"
) -> Images:
    """A folder of class folders, a .tar or .parquet file, a folder of them, or a pattern ('shards/*.tar').

    labels: a label file for a folder of images; classes: number them so, and refuse others; level: of nested folders.
    """
    dense = open_pairs(source, classes) or open_objects(source, classes)
    if dense is not None:
        return dense
    files = find_files(source)
    if not files:
        return ImageFolder.listed(source, labels, classes) if labels else ImageFolder.open(source, classes, level)
    if labels:
        raise InputError(f"a table of labels for {source}", "tar and Parquet files hold their labels themselves")
    return (ParquetImages if files[0].suffix == ".parquet" else TarImages).open(files, classes)


@dataclass(frozen=True)
class Taken:
    """Some of the images of tar or Parquet files."""

    images: Images
    numbers: np.ndarray  # (N,) int64

    @property
    def labels(self) -> np.ndarray:
        """Class numbers, (N,) int64."""
        return self.images.labels[self.numbers]

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of their numbers."""
        return self.images.classes

    @property
    def keys(self) -> tuple[str, ...]:
        """The name of each image."""
        return tuple(map(self.key, range(len(self))))

    def __len__(self) -> int:
        return len(self.numbers)

    def key(self, index: int) -> str:
        """The name of one image."""
        return self.images.key(int(self.numbers[index]))

    def files(self, index: Sequence[int]) -> Iterator[File]:
        """The files of some images, one at a time."""
        return self.images.files(self.numbers[np.asarray(index, np.int64)].tolist())


def take_images(images: Images, numbers: np.ndarray) -> Images:
    """The images at the positions given."""
    return images.take(numbers) if isinstance(images, ImageFolder) else Taken(images, numbers)


def is_pattern(path: Path) -> bool:
    """Whether a path stands for several files."""
    return any(character in str(path) for character in "*?[")


def find_files(source: Path) -> list[Path]:
    """The tar or Parquet files that are meant, sorted by name; none for a folder of anything else."""
    if is_pattern(source) and not source.exists():
        found = sorted(map(Path, glob(str(source))))
        if not found:
            raise InputError(f"no file fits {source}", "check the pattern")
    elif source.is_dir():
        if any(entry.is_dir() and not entry.name.startswith(".") for entry in source.iterdir()):
            return []  # of classes
        found = sorted(p for p in source.iterdir() if p.name.endswith((".tar", ".parquet", *PACKED)))
    else:
        found = [source] if source.name.endswith((".tar", ".parquet", *PACKED)) else []
    if packed := [path for path in found if path.name.endswith(PACKED)]:
        raise InputError(f"{packed[0]} is packed", "unpack it to a plain .tar, whose files can be read in place")
    kinds = {path.suffix for path in found}
    if len(kinds) > 1 or not kinds <= {".tar", ".parquet"}:
        raise InputError(f"{source} means files of several kinds ({', '.join(sorted(kinds))})", "give one kind")
    parts = sorted({re.split("[^a-z]", path.name.lower())[0] for path in found} & PARTS)
    if len(parts) > 1:
        what = f"{source} holds several parts ({', '.join(parts)})"
        folder = source if source.is_dir() else source.parent
        raise InputError(what, f"give one, for example '{folder}/{parts[0]}*{found[0].suffix}'")
    return found
