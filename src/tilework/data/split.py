"""A folder of images in two parts by label files, stratified by class; nothing is copied."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tilework.core.errors import InputError
from tilework.core.files import write
from tilework.data.file_list import lies_below
from tilework.data.image_folder import ImageFolder
from tilework.data.label_file import write_label_file
from tilework.data.overlap import MOST, same_files
from tilework.store.rearrange import first_of_each, random_rank


def make_class_folders(root: Path, classes: Sequence[str]) -> None:
    """A folder for every class. A class out of a label file may have a name that leads elsewhere: it is refused."""
    for name in classes:
        if "/" in name or name in (".", "") or not lies_below(name):
            raise InputError(f"class '{name}' cannot be the name of a folder", "rename it")
        (root / name).mkdir()


def split_numbers(folder: ImageFolder, fraction: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the images of both parts; a share of each class, and a class of one image, is in the first.

    Copies of an image are in one part, up to MOST images, unless all of them are copies.
    """
    rank = random_rank(len(folder), seed)
    if len(folder) > MOST:
        first = first_of_each(folder.labels, rank, fraction)
    else:
        same = same_files(folder.paths)
        first = first_of_each(folder.labels, rank[same], fraction)  # copies follow one another
        whole = np.flatnonzero(np.isin(same, same[first]))
        first = whole if len(whole) < len(folder) else first  # else nothing is left for the second part
    return first, np.setdiff1d(np.arange(len(folder)), first)


def split_images(folder: ImageFolder, out: tuple[Path, Path], fraction: float, seed: int = 0) -> tuple[int, int]:
    """Write two label files, of the images of each part. Returns their counts."""
    first, rest = split_numbers(folder, fraction, seed)
    if not len(rest):
        raise InputError(f"a fraction of {fraction} leaves nothing for {out[1]}", "lower it")
    for path, index in zip(out, (first, rest), strict=True):
        list_images(folder.take(index), path)
    return len(first), len(rest)


def list_images(folder: ImageFolder, path: Path) -> None:
    """Write a label file of the images of a folder."""
    labels = [folder.classes[label] for label in folder.labels.tolist()]
    write(path, write_label_file(folder.root, path, folder.keys, labels).encode())
