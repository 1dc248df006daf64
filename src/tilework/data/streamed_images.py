"""Images of folders, tar or Parquet files, decoded when a batch needs them: no pass over the data, nothing kept.

One that cannot be decoded is quarantined when it is met: training takes the next one instead, evaluation leaves it out.
N images | B batch | H, W pixels
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import BinaryIO, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tilework.core.affine import TRIES, Boxes, random_boxes
from tilework.core.batch import Batch, Column, Target
from tilework.core.errors import BrokenImagesError
from tilework.core.rng import uniform
from tilework.data.image_files import Broken, Frame, ImageBytes, attempt, bounded_image, decode_image
from tilework.data.image_folder import Images
from tilework.data.images import ImageSource
from tilework.data.source import Redrawn, Source, Stream
from tilework.data.whole_images import Sides, cut_image, to_square, upright_sides

T = TypeVar("T")
LOOKED = 100  # images after which a share of broken ones can be told
EVIDENT = 2.0  # times the share that is allowed: above it a run ends at once


class Quarantine:
    """Images that could not be decoded so far; too many of them end the run."""

    def __init__(self, name: str, total: int, max_broken: float) -> None:
        self.name, self.total, self.max_broken = name, total, max_broken
        self.looked = 0  # images that were tried
        self.found: dict[int, Broken] = {}
        self.file: Path | None = None  # a line is added for each
        self._noted: set[str] = set()
        self._lock = Lock()

    def write_to(self, file: Path) -> None:
        """Note every broken image in a file from now on; what it has of an earlier start stays, once."""
        text = file.read_text() if file.is_file() else ""
        for line in text.splitlines():
            with suppress(ValueError, KeyError, TypeError):  # one that a kill cut short
                self._noted.add(json.loads(line)["path"])
        if text and not text.endswith("\n"):
            file.write_text(text + "\n")
        self.file = file

    def add(self, number: int, broken: Broken) -> None:
        """Set an image aside, and say so in the file; refuse if these are too many."""
        with self._lock:
            if number in self.found:
                return
            self.found[number] = broken
            if self.file is not None and broken.path not in self._noted:
                with self.file.open("a") as file:
                    file.write(json.dumps({"path": broken.path, "reason": broken.reason}) + "\n")
            count, looked = len(self.found), max(self.looked, len(self.found))
        evident = looked >= LOOKED and count > EVIDENT * self.max_broken * looked
        if count == self.total or count > self.max_broken * self.total or evident:
            met = list(self.found.values())
            raise BrokenImagesError(
                f"{count} of {min(looked, self.total)} images in {self.name} cannot be read so far "
                f"(first: {met[0].path}: {met[0].reason})",
                broken=count,
                total=min(looked, self.total),
            )


@dataclass
class StreamedImages(ImageSource):
    """Images at one size, decoded anew for every batch."""

    quarantine: Quarantine = field(default_factory=lambda: Quarantine("", 0, 0.0))

    @staticmethod
    def open(images: Images, size: Sides, max_broken: float, frame: Frame, name: str) -> StreamedImages:
        """Nothing is read here. max_broken: share of images that may be broken; name: of the data, for messages."""
        quarantine = Quarantine(name, len(images), max_broken)
        return StreamedImages(images, size, frame=frame, quarantine=quarantine)

    @property
    def stream(self) -> Stream | None:
        """Row groups of Parquet files, which are read as a whole; None where any image is as near as any other."""
        found: Stream | None = getattr(self.folder, "stream", None)
        return found

    def batch(self, index: np.ndarray) -> Batch:
        """Those that can be decoded, x: (b, 3, H, W) uint8."""
        found = self.each(self.decoded, index)
        good = [one for one in found if one is not None]
        x = np.stack(good) if good else np.empty((0, 3, *self.grid), np.uint8)
        index = np.asarray(index, np.int64)[[one is not None for one in found]]
        target = Target.hard(torch.from_numpy(self.folder.labels[index]))
        return Batch(torch.from_numpy(x), target, torch.from_numpy(index))

    def decoded(self, number: int) -> np.ndarray | None:
        """(3, H, W) uint8; None: it is broken."""
        return self.tried(number, lambda: decode_image(self.encoded(number), self.grid, self.frame))

    def tried(self, number: int, do: Callable[[], T]) -> T | None:
        """Something made of an image; None, and the image in quarantine, where that fails."""
        number = int(number)
        if number in self.quarantine.found:
            return None
        made = attempt(None, do)
        if not isinstance(made, str):
            return made
        self.quarantine.add(number, Broken(self.folder.key(number), made))
        return None

    def encoded(self, number: int) -> BinaryIO:
        """The file of an image, in memory."""
        self.quarantine.looked += 1  # one that threads lose does not matter
        file = self.file(number)
        return ImageBytes(file.read_bytes(), file.name) if isinstance(file, Path) else file


@dataclass(frozen=True)
class Opened:
    """An image of which the header was read, and its encoded bytes."""

    image: Image.Image
    sides: Sides  # upright
    data: BinaryIO

    @staticmethod
    def of(data: BinaryIO) -> Opened:
        """Refuses one of too many pixels."""
        image = bounded_image(data)
        return Opened(image, upright_sides(image), data)

    def again(self) -> Image.Image:
        """The same image, for another look."""
        self.data.seek(0)
        return bounded_image(self.data)


class Streamed(Redrawn):
    """Training samples of streamed images: at one size, or a random crop of the whole image, drawn for every epoch.

    columns: the same images with their columns, which cover the middle square. crop: None for images at one size.
    second: what holds a second crop of each image, for objectives that compare two views.
    """

    def __init__(
        self,
        images: StreamedImages,
        columns: Source,
        crop: tuple[Sides, tuple[float, float], tuple[float, float]] | None,  # size, area, aspect
        second: tuple[str, Callable[[Tensor], Column]] | None = None,
    ) -> None:
        self.source, self.images, self.crop, self.second = columns, images, crop, second

    @property
    def grid(self) -> Sides:
        """Of the middle squares."""
        return self.images.grid

    @property
    def stream(self) -> Stream | None:
        """How the images lie."""
        return self.images.stream

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, index: np.ndarray) -> Batch:
        """Middle squares of those that can be decoded. index: (B,) int64."""
        found = self.images.batch(index)
        return found.changed(columns=self.source.batch(found.index.numpy()).columns)

    def draw(self, seed: int, epoch: int, number: np.ndarray) -> Batch:
        """x: (B, 3, H, W) uint8. number: (B,) int64; the place of a broken image is taken by the next good one."""
        size = self.grid if self.crop is None else self.crop[0]
        views = np.empty((1 if self.second is None else 2, len(number), 3, *size), np.uint8)
        index, affine = number % len(self), torch.eye(2, 3).repeat(len(number), 1, 1)
        left = np.arange(len(number))
        while len(left):
            if self.crop is None:
                done = self._at_one_size(index[left], views[0], left)
            else:
                done = self._crops(seed, epoch, number, index, left, views, affine)
            left = left[~done]
            index[left] = (index[left] + 1) % len(self)
        batch = self.source.batch(index)
        columns = {name: column.warp(affine, size, filled=True) for name, column in batch.columns.items()}
        if self.second is not None:
            columns[self.second[0]] = self.second[1](torch.from_numpy(views[1]))
        return batch.changed(x=torch.from_numpy(views[0]), index=torch.from_numpy(number), columns=columns)

    def _at_one_size(self, index: np.ndarray, out: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Fill rows of a batch; returns which are."""
        found = self.images.each(self.images.decoded, index)
        for row, one in zip(rows, found, strict=True):
            if one is not None:
                out[row] = one
        return np.array([one is not None for one in found])

    def _opened(self, number: int) -> Opened | None:
        return self.images.tried(number, lambda: Opened.of(self.images.encoded(number)))

    def _crops(
        self,
        seed: int,
        epoch: int,
        number: np.ndarray,
        index: np.ndarray,
        rows: np.ndarray,
        views: np.ndarray,
        affine: Tensor,
    ) -> np.ndarray:
        """The same with a random crop of each image, twice where two views are asked for."""
        assert self.crop is not None
        size, area, aspect = self.crop
        opened = self.images.each(self._opened, index[rows])
        sides = torch.tensor([(1, 1) if one is None else one.sides for one in opened], dtype=torch.float64)  # (B, 2)
        boxes: list[Boxes] = []
        for own in (seed, ~seed)[: len(views)]:
            u = torch.from_numpy(uniform(own, epoch, number[rows], "random_resized_crop", 4 * TRIES)).double()
            boxes.append(random_boxes(u, sides[:, 0], sides[:, 1], area, aspect))
        affine[rows] = to_square(boxes[0], sides).float()
        places = [list(zip(*(part.tolist() for part in view), strict=True)) for view in boxes]

        def cut(at: int) -> bool:
            one = opened[at]
            if one is None:
                return False
            for view, place in enumerate(places):
                image = one.image if view == 0 else one.again()
                views[view, rows[at]] = cut_image(image, one.sides, place[at], size).transpose(2, 0, 1)
            return True

        def tried(at: int) -> bool:
            return bool(self.images.tried(index[rows[at]], lambda: cut(at)))

        return np.array(self.images.each(tried, np.arange(len(rows))))


def streamed_of(source: Source) -> StreamedImages | None:
    """The streamed images that a data set is made of."""
    if isinstance(source, Streamed):
        return source.images
    return source if isinstance(source, StreamedImages) else None
