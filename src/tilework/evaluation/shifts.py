"""Shifted data sets: how their folders map to a model's classes, and how they are scored.

ImageNet-R and -A have 200 classes: logits of all others are left out, as in the data sets' own scripts. Folders of
ImageNet-V2 are class numbers. ObjectNet's classes stand for one or several of ImageNet's, any of which is right, and
its images have a red border.
N images | K classes of the model | F folders
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import ImageOps
from torch import Tensor

from tilework.core.errors import InputError
from tilework.data import ImageFolder, ImageSource
from tilework.data.image_files import Broken, File, Frame, decode_image, fit_image, open_image, to_rgb
from tilework.data.images import decode_all
from tilework.data.part import part_of
from tilework.evaluation.from_pixels import confidence_error

BORDER = 2  # pixels that are cut off ObjectNet's images: one is red


@dataclass(frozen=True)
class Shift:
    """Images of a shifted data set, and which classes are right for them."""

    name: str
    images: ImageSource  # labels are numbers of folders
    right: Tensor  # (F, K) bool
    missing: tuple[str, ...]  # classes that no folder stands for

    def hits(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Right among the classes of the data set, and among all of the model's, (N,) both."""
        right = self.right[labels]  # (N, K)
        known = self.right.any(0)
        finite = logits.isfinite().all(1)
        among = logits.masked_fill(~known, -torch.inf).argmax(1, keepdim=True)
        overall = logits.argmax(1, keepdim=True)
        return tuple(right.gather(1, which)[:, 0] & finite for which in (among, overall))  # type: ignore[return-value]

    def calibration_error(self, logits: Tensor, hits: Tensor) -> float:
        """ECE among the classes of the data set. hits: (N,) which answers among them are right."""
        among = logits.masked_fill(~self.right.any(0), -torch.inf)
        return confidence_error(among.softmax(1).nan_to_num().max(1).values, hits)


def open_shift(
    name: str,
    root: Path,
    classes: Sequence[str],
    size: tuple[int, int],
    max_broken: float = 0.05,
    images: int = 0,
    frame: Frame = "cover",
) -> Shift:
    """Read a data set, framed as the model's images are.

    A file ROOT/classes.csv or ROOT.csv (folder,class[;class]) maps folders that are no classes.
    """
    folder = ImageFolder.open(root)
    if images and images < len(folder):
        folder = folder.take(part_of(len(folder), images))
    tables = [path for path in (root / "classes.csv", root.with_name(root.name + ".csv")) if path.is_file()]
    right = match(folder.classes, tuple(classes), root, tables[0] if tables else None)
    border = BORDER if name.lower() == "objectnet" else 0
    broken: list[Broken] = []
    good, kept = [], []
    for i, image in decode_all(
        folder, lambda p: _decode(p, size, border, frame), broken, max_broken, lambda done, total: None
    ):
        good.append(i)
        kept.append(image)
    source = ImageSource(folder.take(np.array(good)), size, tuple(broken), frame=frame, _kept=np.stack(kept))
    present = torch.from_numpy(np.unique(source.labels))
    missing = tuple(c for c, known in zip(classes, right[present].any(0).tolist(), strict=True) if not known)
    return Shift(name, source, right, missing)


def _decode(path: File, size: tuple[int, int], border: int, frame: Frame) -> np.ndarray:
    if not border:
        return decode_image(path, size, frame)
    with open_image(path) as image:
        fitted = fit_image(ImageOps.crop(to_rgb(image), border), size, frame)
    return np.ascontiguousarray(np.asarray(fitted).transpose(2, 0, 1))


def match(folders: Sequence[str], classes: tuple[str, ...], root: Path, table: Path | None = None) -> Tensor:
    """Which classes are right for each folder, (F, K); refuses a folder that stands for none."""
    number = {name: i for i, name in enumerate(classes)}
    mapped = {} if table is None else _read(table, number)
    numbered = not any(name in number for name in folders) and all(
        name.isdecimal() and int(name) < len(classes) for name in folders
    )
    right = torch.zeros(len(folders), len(classes), dtype=torch.bool)
    for row, name in enumerate(folders):
        if name in mapped:
            right[row, mapped[name]] = True
        elif name in number:
            right[row, number[name]] = True
        elif numbered:
            right[row, int(name)] = True
        else:
            heads = [", ".join(list(names)[:5]) + (", ..." if len(names) > 5 else "") for names in (folders, classes)]
            what = f"{root} has a folder '{name}' that is no class of the model"
            hint = f"map it in {root / 'classes.csv'} (folder,class[;class]); folders: {heads[0]}; classes: {heads[1]}"
            raise InputError(what, hint)
    return right


def _read(table: Path, number: dict[str, int]) -> dict[str, list[int]]:
    try:
        with table.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{table} cannot be read", str(error)) from error
    found: dict[str, list[int]] = {}
    for line, row in enumerate(rows, 1):
        if line == 1 and row[:2] == ["folder", "class"]:
            continue
        names = [name.strip() for name in row[1].split(";")] if len(row) == 2 else []
        if not names or any(name not in number for name in names):
            raise InputError(f"line {line} of {table} names no class of the model", "write folder,class[;class]")
        found[row[0]] = [number[name] for name in names]
    return found
