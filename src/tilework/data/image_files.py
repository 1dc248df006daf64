"""Files of images: opened within their limits, upright, in RGB, at a size.

H, W pixels
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
from PIL import ExifTags, Image, ImageOps, features

from tilework.data.image_limits import alone, bytes_of, check_header, check_memory, is_large
from tilework.store.manifest import Frame as Frame

T = TypeVar("T")
File = Path | BinaryIO  # of an image
GREY = (124, 116, 104)  # ImageNet's mean, beside an image that does not fill its size
SUFFIXES: tuple[str, ...] = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
FORMATS: tuple[str, ...] = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")  # of GIF the first frame
if features.check("avif"):
    SUFFIXES, FORMATS = (*SUFFIXES, ".avif"), (*FORMATS, "AVIF")
if find_spec("pillow_heif"):
    import_module("pillow_heif").register_heif_opener()
    SUFFIXES, FORMATS = (*SUFFIXES, ".heic", ".heif"), (*FORMATS, "HEIF")
TILE = 1024  # pixels on a side of what is copied of a large image at a time
ALPHA = ("RGBA", "LA", "PA")  # modes with transparency


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


def decode_image(path: File, size: tuple[int, int], frame: Frame = "cover") -> np.ndarray:
    """An image upright, in RGB, resized (bicubic). Returns (3, H, W) uint8.

    frame: cover: the short side is resized and the middle cut out; squash: each side is resized by itself; letterbox:
    the long side is resized, and the image lies at the upper left.
    """
    with open_image(path, size) as upright:
        fitted = fit_image(to_rgb(upright), size, frame)
    return np.ascontiguousarray(np.asarray(fitted).transpose(2, 0, 1))


def framing(size: tuple[int, int], frame: Frame) -> str:
    """What `decode_image` does, in words, but for the range of values."""
    height, width = size
    shape = "square" if height == width else f"part with sides {height}:{width}"
    how = {"cover": f"the largest {shape} in the middle resized", "squash": "squashed", "letterbox": "letterboxed"}
    return f"upright RGB, {how[frame]} (bicubic) to {height}x{width} px"


def fit_image(image: Image.Image, size: tuple[int, int], frame: Frame) -> Image.Image:
    """An image in RGB at a size (bicubic). size: height, width."""
    sides, cubic = (size[1], size[0]), Image.Resampling.BICUBIC
    if frame == "cover":
        return ImageOps.fit(image, sides, cubic)
    if frame == "squash":
        return image.resize(sides, cubic)
    step = max(image.width / size[1], image.height / size[0])
    canvas = Image.new("RGB", sides, GREY)
    canvas.paste(image.resize((max(1, round(image.width / step)), max(1, round(image.height / step))), cubic))
    return canvas


@contextmanager
def open_image(path: File, size: tuple[int, int] | None = None) -> Iterator[Image.Image]:
    """An image upright. size: what it will be cut to, if at once."""
    with bounded_image(path) as image:
        if size is not None:
            image.draft("RGB", (2 * max(size), 2 * max(size)))  # the sides may change places below
        with alone(image):
            if size is not None:
                image = _reduced(image, 2 * max(size))
            turn(image)
            yield image


def _reduced(image: Image.Image, side: int) -> Image.Image:
    """A large image by a whole factor smaller, sides `side` at least, before copies of it are made: mode, orientation.

    JPEG files are decoded smaller at once; of other formats, one whole copy stays.
    """
    factor = min(image.size) // max(1, side)
    if factor < 2 or not is_large(image.width * image.height):
        return image
    image.load()  # which turns a TIFF, and its sides
    orientation = image.getexif().get(ExifTags.Base.Orientation)
    averaged = image.mode in ("L", "RGB") and "transparency" not in image.info
    reduced = image.reduce(factor) if averaged else _rgb_by_tiles(image, factor)
    if orientation is not None:
        reduced.getexif()[ExifTags.Base.Orientation] = orientation
    return reduced


@contextmanager
def open_stored(path: File) -> Iterator[Image.Image]:
    """An image as it is stored, its number of pixels bounded before it is decoded."""
    with bounded_image(path) as image, alone(image):
        yield image


def turn(image: Image.Image) -> None:
    """Put an image upright, without a copy of one that is."""
    if image.getexif().get(ExifTags.Base.Orientation, 1) in range(2, 9):
        check_memory(image, 2 * bytes_of(image), "lie on their side and take")
    ImageOps.exif_transpose(image, in_place=True)


def bounded_image(path: File) -> Image.Image:
    """An image of which the header was read, within its limits; open for as long as it is used."""
    image = Image.open(path, formats=FORMATS)
    try:
        check_header(image, _bytes(path))
    except Exception:
        image.close()
        raise
    return image


def _bytes(file: File) -> int:
    if isinstance(file, Path):
        return file.stat().st_size
    at, end = file.tell(), file.seek(0, io.SEEK_END)
    file.seek(at)
    return end


def tiles(image: Image.Image, multiple: int = 1) -> Iterator[tuple[int, int, Image.Image]]:
    """An image in squares from left to right and down, each with its left and top. multiple: of which sides are."""
    side = multiple * max(1, TILE // multiple)
    if max(image.size) <= side:
        yield 0, 0, image
        return
    for top in range(0, image.height, side):
        for left in range(0, image.width, side):
            box = (left, top, min(left + side, image.width), min(top + side, image.height))
            yield left, top, image.crop(box)


def to_rgb(image: Image.Image) -> Image.Image:
    """Any mode to RGB: 16-bit grey is scaled, transparency lies on white. One in RGB is given back, not copied."""
    clear = "transparency" in image.info
    if image.mode == "RGB" and not clear:
        image.load()
        return image
    pixels = image.width * image.height
    check_memory(image, bytes_of(image) + 4 * pixels, f"({image.mode}) take, beside a copy in RGB,")
    copied_twice = image.mode.startswith("I") or image.mode in ALPHA or clear
    return _rgb_by_tiles(image) if is_large(pixels) and copied_twice else _opaque(image)


def _rgb_by_tiles(image: Image.Image, factor: int = 1) -> Image.Image:
    """An image in RGB, smaller by a factor; copies in other modes are of tiles."""
    whole = Image.new("RGB", (-(-image.width // factor), -(-image.height // factor)))
    for left, top, tile in tiles(image, factor):
        whole.paste(_opaque(tile).reduce(factor), (left // factor, top // factor))
    return whole


def _opaque(image: Image.Image) -> Image.Image:
    """`to_rgb`, in one piece."""
    if image.mode == "F":
        raise ValueError("pixels are floating-point numbers, whose range is not known")
    if image.mode.startswith("I"):
        grey = np.asarray(image)
        if grey.min() < 0 or grey.max() > 0xFFFF:
            raise ValueError(f"pixels from {grey.min()} to {grey.max()} are not of 16 bits")
        image = Image.fromarray((grey / np.float32(257)).round().astype(np.uint8))
    if image.mode in ALPHA or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def attempt(path: File | None, decode: Callable[[], T]) -> T | str:
    """What a decoder gives, or why it gives nothing. path: of which messages show the name alone."""
    try:
        return decode()
    except Exception as error:  # a damaged file can raise anything in a decoder: struct.error, SyntaxError, ...
        text = str(error).replace(str(path), path.name) if isinstance(path, Path) else str(error)
        return " ".join(text.split()) or type(error).__name__
