"""Images as people have them: which of them there are to train and to validate on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tilework.core.console import counted
from tilework.core.errors import InputError
from tilework.core.location import is_store
from tilework.data.detected import boxes_near
from tilework.data.image_folder import PARTS, ImageFolder, Level
from tilework.data.label_file import SUFFIXES as LABEL_SUFFIXES
from tilework.data.labels import UNLABELLED

VALIDATION = ("val", "valid", "validation", "test")  # folders beside train/, the first that is there
FEWEST = 10  # images


@dataclass(frozen=True)
class Parts:
    """What there is to train and to validate on."""

    train: Path
    val: Path | None  # None: a part of `train` is split off
    folder: ImageFolder  # of `train`
    judged: ImageFolder | None  # of `val`


def find_parts(images: Path, val: Path | None = None, level: Level = "leaf") -> Parts:
    """Images as people have them: class folders, nested or not, a label file, or train/ and val/ with either."""
    if images.is_dir() and val is None:
        found = {entry.name for entry in images.iterdir() if entry.is_dir() and not entry.name.startswith(".")}
        if "train" in found and found <= PARTS:
            val = next((images / name for name in VALIDATION if name in found), None)
            images = images / "train"
    if val is not None and is_store(val):
        raise InputError(f"{val} is a token store, not images", "give a folder of images, or a label file")
    boxes = boxes_near(images)
    try:
        folder = _labelled(images, level, val is None)
    except InputError as error:
        if boxes is None:
            raise
        raise InputError(f"{images} has annotations of boxes ({boxes[0]}), no classes of images", boxes[1]) from error
    if boxes is not None:
        remark = f"{images}: annotations of boxes ({boxes[0]}) are not read here: {boxes[1]}"
        folder = replace(folder, remarks=(*folder.remarks, remark))
    return Parts(images, val, folder, None if val is None else ImageFolder.open(val, folder.classes, level))


def _labelled(images: Path, level: Level, split: bool) -> ImageFolder:
    """Images with enough classes and images to learn from. split: whether those to validate on are among them."""
    folder = ImageFolder.open(images, level=level)
    if folder.classes == (UNLABELLED,):
        tables = sorted(file for file in images.glob("*") if file.suffix.lower() in LABEL_SUFFIXES)
        hint = (
            f"give {tables[0]} if it has them" if tables else "give each class a sub-folder of its own, or a label file"
        )
        what = "is one image" if images.is_file() else "has no class folders and no labels"
        raise InputError(f"{images} {what}", hint)
    each = np.bincount(folder.labels)
    full = int((each > 0).sum())
    if split and each.max() < 3:
        raise InputError(f"no class of {images} has 3 images", "add some, or give images to validate on with --val")
    if full < 2 or len(folder) < FEWEST:
        what = f"{images} has {counted(len(folder), 'image')} of {full} class{'' if full == 1 else 'es'}"
        raise InputError(what, f"two classes and {FEWEST} images are needed at least")
    return folder
