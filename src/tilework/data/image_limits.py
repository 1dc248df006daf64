"""What the file of an image may cost: pixels, scans and memory, looked at before it is decoded; one large image at a
time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice, takewhile
from threading import RLock
from typing import IO

from PIL import Image, ImageFile

LARGEST = 100_000_000  # pixels; read from the header
LARGE, THIN = 16_000_000, 100  # an image of more pixels than the first has a byte for so many of them at least
MOST_BYTES = 520_000_000  # of an image in memory and one copy of it together
PIXEL_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}  # by mode; of others 4
MOST_SCANS = 100  # of a JPEG file; encoders write about 10, and each takes as long as the image, however few its bytes
MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd7\xff])")  # of a segment of a JPEG file that has a length
SEQUENTIAL, SCAN, END = frozenset((0xC0, 0xC1)), 0xDA, 0xD9  # frames of sequential Huffman codes; a scan; the end
ONE_LARGE = RLock()  # held while a large image is in memory: a core for each would take as many times its memory


def check_header(image: ImageFile.ImageFile, stored: int) -> None:
    """Refuse an image by what its header says. stored: bytes of its file."""
    sides = f"{image.width}x{image.height} pixels"
    if image.width * image.height > LARGEST:
        raise ValueError(f"{sides} are more than {LARGEST}")
    if is_large(image.width * image.height) and image.width * image.height > THIN * stored:
        raise ValueError(f"{sides} in {stored} bytes are no photograph")
    if _jpeg(image) and image.fp is not None and _many_scans(image.fp):
        raise ValueError(f"a JPEG file of more than {MOST_SCANS} scans")


def is_large(pixels: int) -> bool:
    """Whether an image of so many pixels is in memory alone, and copied by tiles."""
    return pixels > LARGE


def check_memory(image: Image.Image, size: int, what: str) -> None:
    """Refuse what takes more bytes than an image in memory and a copy may. what: "lie on their side and take"."""
    if size > MOST_BYTES:
        raise ValueError(f"{image.width}x{image.height} pixels {what} too much memory: {size >> 20} MB")


def bytes_of(image: Image.Image) -> int:
    """Bytes of an image in memory."""
    return image.width * image.height * PIXEL_BYTES.get(image.mode, 4)


def alone(image: Image.Image) -> AbstractContextManager[object]:
    """While an image is decoded and used, no other large one is. JPEG files count at the size they are decoded to."""
    told = getattr(image, "decoderconfig", ()) if _jpeg(image) else ()
    scale, pixels = int(told[0]) if told else 1, image.width * image.height  # how many times smaller it is decoded
    progressive = _jpeg(image) and bool(image.info.get("progressive"))
    if progressive:
        sampled = [horizontal * vertical for _, horizontal, vertical, _ in getattr(image, "layer", ())]
        coefficients = 2 * scale**2 * pixels * sum(sampled) // max(sampled, default=1)  # of the whole image
        check_memory(image, 4 * pixels + coefficients, "are a progressive JPEG file that takes")
    return ONE_LARGE if is_large(pixels * (scale**2 if progressive else 1)) else nullcontext()


def _jpeg(image: Image.Image) -> bool:
    return image.format in ("JPEG", "MPO")


def _many_scans(file: IO[bytes]) -> bool:
    """Whether a JPEG file whose header was read has more scans than MOST_SCANS.

    Scans of sequential Huffman codes, as most files have, hold bits of every block: they are bounded by their bytes.
    """
    start = file.tell()
    file.seek(0)
    many = SEQUENTIAL.isdisjoint(_markers(file.read(start)))
    if many:
        file.seek(0)
        data = file.read(LARGEST)  # a byte for every pixel: what lies beyond is slow by its own size
        kinds = takewhile(lambda kind: kind not in SEQUENTIAL, _markers(data))
        many = sum(1 for _ in islice((kind for kind in kinds if kind == SCAN), MOST_SCANS + 1)) > MOST_SCANS
    file.seek(start)
    return many


def _markers(data: bytes) -> Iterator[int]:
    """Kinds of the segments of a JPEG file until it ends."""
    at = 2
    while (found := MARKER.search(data, at)) and found[1][0] != END:
        yield found[1][0]
        at = found.end() + int.from_bytes(data[found.end() : found.end() + 2], "big")
