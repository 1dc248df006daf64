"""Small images, written to files."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = (16, 24)  # H, W
HTML = b"<!doctype html><html><body>404 Not Found</body></html>"
ORIENTATION = 0x0112
UNDO = {  # how to lay an upright picture so that the orientation tag brings it back
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def gradient(height: int = SIZE[0], width: int = SIZE[1]) -> np.ndarray:
    """Red rises to the right, green falls downwards, blue is low: no symmetry. Returns (H, W, 3) uint8."""
    red = np.broadcast_to(np.linspace(20, 230, width), (height, width))
    green = np.broadcast_to(np.linspace(240, 10, height)[:, None], (height, width))
    return np.stack([red, green, np.full_like(red, 30)], -1).astype(np.uint8)


def put(path: Path, image: Image.Image | bytes | None = None, **options: object) -> Path:
    """Save a picture, or raw bytes, making the folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(image, bytes):
        path.write_bytes(image)
    else:
        (image or Image.fromarray(gradient())).save(path, **options)
    return path


def tags(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return exif


def colour(image: np.ndarray) -> tuple[int, ...]:
    """The one colour of a decoded picture (3, H, W)."""
    flat = image.reshape(3, -1)
    assert (flat == flat[:, :1]).all()
    return tuple(flat[:, 0].tolist())


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
