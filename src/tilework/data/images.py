"""Image folders: class-per-directory photographs as pixel batches.

A file that cannot be decoded is quarantined with its reason; nothing is skipped silently.
B batch | H, W pixels
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

import numpy as np
import torch
from PIL import Image, ImageOps

from tilework.core.batch import Batch, Stage, Target
from tilework.core.codebook import Codebook
from tilework.core.errors import InputError

T = TypeVar("T")
File = Path | BinaryIO  # of an image
Frame = Literal["cover", "squash"]  # how an image of any aspect fills a size
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
FORMATS = ("JPEG", "PNG", "WEBP")
LARGEST = 100_000_000  # pixels; read from the header before anything is decoded
PARTS = {"train", "val", "valid", "validation", "test"}  # of a data set: folders of class folders
KEEP_BYTES = 1 << 30  # decoded folders up to this size stay in memory


@dataclass(frozen=True)
class Broken:
    """A file that was set aside, and why."""

    path: str
    reason: str


class ImageBytes(io.BytesIO):
    """The file of an image in memory; messages about it show its name."""

    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(data)
        self.name = name

    def __repr__(self) -> str:
        return repr(self.name.rpartition("/")[2])


@dataclass(frozen=True)
class ImageFolder:
    """The images below a directory, sorted; its sub-directories are the classes."""

    root: Path
    paths: tuple[Path, ...]
    labels: np.ndarray  # (N,) int64
    classes: tuple[str, ...]
    ignored: int = 0  # files with another suffix, or beside the class folders

    @staticmethod
    def open(root: Path, classes: Sequence[str] | None = None) -> ImageFolder:
        """List a folder; with `classes`, number them as given and refuse others."""
        if root.is_file():
            raise InputError(f"{root} is a file", "give a folder with one sub-folder of images per class")
        if not root.is_dir():
            raise InputError(f"no folder {root}", "give a folder with one sub-folder of images per class")
        found = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        if not found:
            raise InputError(f"{root} has no class folders", "give each class a sub-folder of its own")
        if "train" in found and set(found) <= PARTS and any(entry.is_dir() for entry in (root / "train").iterdir()):
            raise InputError(f"{root} holds parts ({', '.join(found)}), not classes", f"give {root / 'train'}")
        names = tuple(found if classes is None else classes)
        if unknown := sorted(set(found) - set(names)):
            raise InputError(f"{root} has a class '{unknown[0]}' that training does not know", "remove or rename it")
        loose = sum(entry.is_file() and not entry.name.startswith(".") for entry in root.iterdir())
        files = [(name, path) for name in found for path in _files(root / name)]
        paths = [(name, path) for name, path in files if path.suffix.lower() in SUFFIXES]
        if not paths:
            raise InputError(f"{root} holds no images", f"files ending in {', '.join(SUFFIXES)} are read")
        number = {name: i for i, name in enumerate(names)}
        labels = np.array([number[name] for name, _ in paths], np.int64)
        return ImageFolder(root, tuple(p for _, p in paths), labels, names, loose + len(files) - len(paths))

    @staticmethod
    def listed(root: Path, table: Path, classes: Sequence[str] | None = None) -> ImageFolder:
        """Images by a CSV file with the columns `path` (below the root) and `label` (a class name)."""
        try:
            with table.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
        except (OSError, csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"{table} cannot be read", str(error)) from error
        if not rows or not {"path", "label"} <= rows[0].keys():
            raise InputError(f"{table} has no rows with 'path' and 'label'", "name the columns in its first line")
        names = tuple(classes if classes is not None else sorted({row["label"] or "" for row in rows}))
        seen: set[str] = set()
        for line, row in enumerate(rows, 2):
            path, label = row["path"] or "", row["label"] or ""
            if not label or label not in names:
                raise InputError(f"line {line} of {table} has the label '{label}'", f"one of {len(names)} is needed")
            if path in seen or not path or path.startswith("/") or ".." in Path(path).parts:
                raise InputError(f"line {line} of {table} has the path '{path}'", "each once, below the folder")
            seen.add(path)
        number = {name: i for i, name in enumerate(names)}
        labels = np.array([number[row["label"]] for row in rows], np.int64)
        return ImageFolder(root, tuple(root / row["path"] for row in rows), labels, names)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def keys(self) -> tuple[str, ...]:
        """The name of each image: its path below the root."""
        return tuple(map(self.key, range(len(self))))

    def key(self, index: int) -> str:
        """The name of one image."""
        return self.paths[index].relative_to(self.root).as_posix()

    def files(self, index: Sequence[int]) -> Iterator[Path]:
        """The files of some images."""
        return (self.paths[i] for i in index)

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(path.stat().st_size for path in self.paths)

    def take(self, good: np.ndarray) -> ImageFolder:
        """The images at the positions given."""
        return ImageFolder(self.root, tuple(self.paths[i] for i in good), self.labels[good], self.classes, self.ignored)


def _files(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in entry.relative_to(folder).parts)
        if entry.is_file() and not hidden:
            yield entry


def decode_image(path: File, size: tuple[int, int], frame: Frame = "cover") -> np.ndarray:
    """An image upright, in RGB, resized (bicubic). Returns (3, H, W) uint8.

    frame: cover: the short side is resized and the middle cut out; squash: each side is resized by itself.
    """
    with open_image(path, size) as upright:
        fit = ImageOps.fit if frame == "cover" else Image.Image.resize
        fitted = fit(to_rgb(upright), (size[1], size[0]), Image.Resampling.BICUBIC)
    return np.ascontiguousarray(np.asarray(fitted).transpose(2, 0, 1))


@contextmanager
def open_image(path: File, size: tuple[int, int] | None = None) -> Iterator[Image.Image]:
    """An image upright. size: what it will be cut to, if at once."""
    with open_stored(path) as image:
        if size is not None:
            image.draft("RGB", (2 * max(size), 2 * max(size)))  # the sides may change places below
        yield ImageOps.exif_transpose(image)


@contextmanager
def open_stored(path: File) -> Iterator[Image.Image]:
    """An image as it is stored, its number of pixels bounded before it is decoded."""
    with Image.open(path, formats=FORMATS) as image:
        if image.width * image.height > LARGEST:
            raise ValueError(f"{image.width}x{image.height} pixels are more than {LARGEST}")
        yield image


def to_rgb(image: Image.Image) -> Image.Image:
    """Any mode to RGB: 16-bit grey is scaled, transparency lies on white."""
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image, np.float32) / 257).round().clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


@dataclass
class ImageSource:
    """Pixels of a folder at one size, small folders decoded once and kept in memory."""

    folder: ImageFolder
    grid: tuple[int, int]  # H, W
    broken: tuple[Broken, ...] = ()
    stage: Stage = "pixels"
    together: int = 1
    codebook: Codebook | None = None
    frame: Frame = "cover"
    _kept: np.ndarray | None = field(default=None, repr=False)
    _pool: ThreadPoolExecutor | None = field(default=None, repr=False)

    @staticmethod
    def load(
        root: Path,
        size: tuple[int, int],
        classes: Sequence[str] | None = None,
        max_broken: float = 0.05,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> ImageSource:
        """`read` of a class folder."""
        return ImageSource.read(ImageFolder.open(root, classes), size, max_broken, progress)

    @staticmethod
    def read(
        folder: ImageFolder,
        size: tuple[int, int],
        max_broken: float = 0.05,
        progress: Callable[[int, int], None] = lambda done, total: None,
        frame: Frame = "cover",
    ) -> ImageSource:
        """Decode every file once, so that the number of good ones is known before training.

        max_broken: share of unreadable files above which the folder is refused.
        """
        keep = len(folder) * size[0] * size[1] * 3 <= KEEP_BYTES
        pixels = np.empty((len(folder) if keep else 0, 3, *size), np.uint8)
        broken: list[Broken] = []
        good: list[int] = []
        for i, image in decode_all(folder, lambda path: decode_image(path, size, frame), broken, max_broken, progress):
            if keep:
                pixels[len(good)] = image
            good.append(i)
        kept = pixels[: len(good)] if keep else None
        return ImageSource(folder.take(np.array(good)), size, tuple(broken), frame=frame, _kept=kept)

    @staticmethod
    def blank(folder: ImageFolder, size: tuple[int, int]) -> ImageSource:
        """The images of a folder without a look at them: all of them black."""
        return ImageSource(folder, size, _kept=np.broadcast_to(np.uint8(0), (len(folder), 3, *size)))

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of their numbers."""
        return self.folder.classes

    @property
    def labels(self) -> np.ndarray:
        """Class numbers, (N,)."""
        return self.folder.labels

    def __len__(self) -> int:
        return len(self.folder)

    def batch(self, index: np.ndarray) -> Batch:
        """x: (B, 3, H, W) uint8."""
        x = self._kept[index] if self._kept is not None else np.stack(list(self.each(self._decode, index)))
        return Batch(
            torch.from_numpy(x),
            Target.hard(torch.from_numpy(self.folder.labels[index])),
            torch.from_numpy(np.asarray(index, np.int64)),
        )

    def each(self, do: Callable[[int], T], index: np.ndarray) -> Iterator[T]:
        """Something done for each image by the decoding threads, in order."""
        self._pool = self._pool or ThreadPoolExecutor(_threads())
        return self._pool.map(do, index)

    def _decode(self, number: int) -> np.ndarray:
        return decode_image(self.folder.paths[number], self.grid, self.frame)


def decode_all(
    folder: ImageFolder,
    decode: Callable[[Path], T],
    broken: list[Broken],
    max_broken: float,
    progress: Callable[[int, int], None],
) -> Iterator[tuple[int, T]]:
    """The number of each good image and what is made of it; the others join `broken`, and too many are refused."""
    with ThreadPoolExecutor(_threads()) as pool:
        for i, image in enumerate(pool.map(lambda path: attempt(path, lambda: decode(path)), folder.paths)):
            if isinstance(image, str):
                broken.append(Broken(folder.key(i), image))
            else:
                yield i, image
            progress(i + 1, len(folder))
    if len(broken) == len(folder) or len(broken) > max_broken * len(folder):
        raise InputError(
            f"{len(broken)} of {len(folder)} images in {folder.root} cannot be read "
            f"(first: {broken[0].path}: {broken[0].reason})",
            f"repair or remove them; at most {max_broken:.0%} may be broken",
        )


def attempt(path: File, decode: Callable[[], T]) -> T | str:
    """What a decoder gives, or why it gives nothing."""
    try:
        return decode()
    except Exception as error:  # a damaged file can raise anything in a decoder: struct.error, SyntaxError, ...
        text = str(error).replace(str(path), path.name) if isinstance(path, Path) else str(error)
        return " ".join(text.split()) or type(error).__name__


def _threads() -> int:
    return min(16, os.cpu_count() or 1)
