"""Random crops of whole images at their own size, as pixel recipes are published: cut while they are decoded.

Boxes are a function of (seed, epoch, sample): nothing to save, the same in any number of processes.
N images | B batch | H, W pixels of a crop
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from math import ceil, floor

import numpy as np
import torch
from PIL import ExifTags, Image
from torch import Tensor

from tilework.core.affine import TRIES, Boxes, box_affine, random_boxes
from tilework.core.batch import Batch, Column
from tilework.core.rng import uniform
from tilework.data.image_files import Broken, File, bounded_image, open_image, to_rgb, turn
from tilework.data.image_folder import ImageFolder
from tilework.data.image_limits import alone, is_large
from tilework.data.images import ImageSource, decode_all
from tilework.data.source import KEEP_BYTES, Redrawn, Source

Sides = tuple[int, int]  # height, width
Box = tuple[float, float, float, float]  # top, left, height, width
GAP = 3.0  # large crops are averaged down to so many times their size first, instead of copied
FINER = 1.5  # a crop is decoded at this many times its size at least, where the file has as much


@dataclass
class WholeImages(ImageSource):
    """Images of a folder and their sides; small folders stay in memory, short sides at most twice those of the crop."""

    sides: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.int64))  # (N, 2) height, width, upright
    _whole: list[np.ndarray] | None = field(default=None, repr=False)  # (h, w, 3) each

    @staticmethod
    def scan(
        folder: ImageFolder,
        size: Sides,
        crop: Sides,
        max_broken: float = 0.05,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> WholeImages:
        """Decode every file once, as `ImageSource.read` does. size: of the middle squares that `batch` gives."""
        kept: list[np.ndarray] | None = []
        broken: list[Broken] = []
        good, sides, held = [], [], 0
        for i, (image, own) in decode_all(folder, lambda p: shrink_image(p, crop), broken, max_broken, progress):
            good.append(i)
            sides.append(own)
            held += image.nbytes
            if held > KEEP_BYTES:
                kept = None
            elif kept is not None:
                kept.append(image)
        return WholeImages(folder.take(np.array(good)), size, tuple(broken), sides=np.array(sides), _whole=kept)

    def cut(self, index: np.ndarray, boxes: Boxes, size: Sides) -> Tensor:
        """A box of each image, resized. index: (B,); boxes: in pixels; returns (B, 3, H, W) uint8."""
        places = list(zip(*(part.tolist() for part in boxes), strict=True))
        out = np.empty((len(index), 3, *size), np.uint8)

        def one(row: int) -> None:
            out[row] = self._cut(int(index[row]), places[row], size).transpose(2, 0, 1)

        self.each(one, np.arange(len(index)))
        return torch.from_numpy(out)

    def _cut(self, number: int, box: Box, size: Sides) -> np.ndarray:
        sides = (int(self.sides[number, 0]), int(self.sides[number, 1]))
        if self._whole is None:
            return cut_file(self.file(number), sides, box, size)
        image = self._whole[number]
        (left, top, right, bottom), inner = _enclose(box, sides, (image.shape[0], image.shape[1]))
        return _resize(Image.fromarray(image[top:bottom, left:right]), inner, size)


class RandomCrops(Redrawn):
    """Random resized crops of whole images, drawn anew in every epoch; columns follow, and have no label outside.

    columns: the same images with columns that cover their middle square; what pixels they have does not matter.
    second: what holds a second crop of each image, for objectives that compare two views.
    """

    def __init__(
        self,
        images: WholeImages,
        columns: Source,
        size: Sides,
        area: tuple[float, float],
        aspect: tuple[float, float],
        second: tuple[str, Callable[[Tensor], Column]] | None = None,
    ) -> None:
        self.source, self.images = columns, images
        self.size, self.area, self.aspect, self.second = size, area, aspect, second

    @property
    def grid(self) -> Sides:
        """Of the middle squares."""
        return self.images.grid

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, index: np.ndarray) -> Batch:
        """Middle squares, with their columns. index: (B,) int64."""
        return self.images.batch(index).changed(columns=self.source.batch(index).columns)

    def draw(self, seed: int, epoch: int, number: np.ndarray) -> Batch:
        """Crops, x: (B, 3, H, W) uint8. number: (B,) int64; copies of a sample are cut apart."""
        index = number % len(self)
        boxes = self._boxes(seed, epoch, number)
        affine = to_square(boxes, self._sides(index)).float()
        batch = self.source.batch(index)
        columns = {name: column.warp(affine, self.size, filled=True) for name, column in batch.columns.items()}
        if self.second is not None:
            name, hold = self.second
            columns[name] = hold(self.images.cut(index, self._boxes(~seed, epoch, number), self.size))
        x = self.images.cut(index, boxes, self.size)
        return batch.changed(x=x, index=torch.from_numpy(number), columns=columns)

    def _boxes(self, seed: int, epoch: int, number: np.ndarray) -> Boxes:
        u = torch.from_numpy(uniform(seed, epoch, number, "random_resized_crop", 4 * TRIES)).double()
        rows, columns = self._sides(number % len(self)).unbind(1)
        return random_boxes(u, rows, columns, self.area, self.aspect)

    def _sides(self, index: np.ndarray) -> Tensor:
        return torch.from_numpy(self.images.sides[index]).double()  # (B, 2)


def to_square(boxes: Boxes, sides: Tensor) -> Tensor:
    """Map from a crop to the image's middle square, (B, 2, 3); beyond -1 and 1 the square has ended. sides: (B, 2)."""
    side = sides.amin(1)
    top, left = boxes.top - (sides[:, 0] - side) / 2, boxes.left - (sides[:, 1] - side) / 2
    return box_affine(top / side, left / side, boxes.height / side, boxes.width / side)


def cut_file(path: File, sides: Sides, box: Box, size: Sides) -> np.ndarray:
    """A box of a file's image, resized (bicubic); decoded no finer than it needs. Returns (H, W, 3) uint8.

    sides: of the upright image, by which the box is given.
    """
    with bounded_image(path) as image:
        return cut_image(image, sides, box, size)


def cut_image(image: Image.Image, sides: Sides, box: Box, size: Sides) -> np.ndarray:
    """The same of an image that was opened and not yet decoded. It is closed afterwards, and its memory free."""
    wanted = [ceil(FINER * size[i] * sides[i] / box[2 + i]) for i in (0, 1)]  # height, width of the whole
    image.draft("RGB", (wanted[0], wanted[1]) if _lies(image) else (wanted[1], wanted[0]))
    with alone(image), closing(image):
        turn(image)
        outer, inner = _enclose(box, sides, (image.height, image.width))
        left, top, right, bottom = outer
        if not is_large((right - left) * (bottom - top)):
            return _resize(to_rgb(image.crop(outer)), inner, size)
        return _resize(to_rgb(image), (left + inner[0], top + inner[1], left + inner[2], top + inner[3]), size, GAP)


def upright_sides(image: Image.Image) -> Sides:
    """Height and width once it is put upright."""
    return image.size if _lies(image) else (image.height, image.width)


def shrink_image(path: File, crop: Sides) -> tuple[np.ndarray, Sides]:
    """An image upright in RGB, its short side at most twice the crop's longer one, and the sides that it had."""
    with bounded_image(path) as image:
        own = upright_sides(image)
    with open_image(path, crop) as upright:
        shrunk, least = to_rgb(upright), 2 * max(crop)
    if min(shrunk.size) > least:
        shorter = min(shrunk.size)
        shrunk = shrunk.resize(
            (round(shrunk.width * least / shorter), round(shrunk.height * least / shorter)), Image.Resampling.BICUBIC
        )
    return np.asarray(shrunk), own


def _lies(image: Image.Image) -> bool:
    """Whether height and width change places when the image is put upright."""
    return image.getexif().get(ExifTags.Base.Orientation, 1) in (5, 6, 7, 8)


def _enclose(box: Box, sides: Sides, held: Sides) -> tuple[tuple[int, int, int, int], Box]:
    """The whole pixels around a box in an image held at another size, and the box within them; left before top."""
    (down, across), (top, left, height, width) = (held[0] / sides[0], held[1] / sides[1]), box
    x, right = left * across, min((left + width) * across, held[1])
    y, bottom = top * down, min((top + height) * down, held[0])
    outer = (floor(x), floor(y), ceil(right), ceil(bottom))
    return outer, (x - outer[0], y - outer[1], right - outer[0], bottom - outer[1])


def _resize(image: Image.Image, box: Box, size: Sides, gap: float | None = None) -> np.ndarray:
    return np.asarray(image.resize((size[1], size[0]), Image.Resampling.BICUBIC, box, gap))
