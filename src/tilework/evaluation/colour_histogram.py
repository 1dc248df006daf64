"""Colour histograms of images: the cheapest features that a classifier can be compared with.

N images | Q steps of each colour
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tilework.core.errors import InputError
from tilework.data.image_files import attempt, decode_image

STEPS, SIDE = 8, 64  # of each colour; pixels that an image is resized to


def colour_histogram(pixels: np.ndarray, steps: int = STEPS) -> np.ndarray:
    """Square roots of the shares of Q^3 colours (Hellinger). pixels: (3, H, W) uint8; returns (Q^3,) float32."""
    red, green, blue = pixels.reshape(3, -1).astype(np.int64) * steps // 256
    counts = np.bincount((red * steps + green) * steps + blue, minlength=steps**3)
    return np.sqrt(counts / counts.sum()).astype(np.float32)


def colour_histograms(paths: Sequence[Path]) -> Tensor:
    """Of images that can be read, (N, Q^3)."""

    def measure(path: Path) -> np.ndarray:
        found = attempt(path, lambda: colour_histogram(decode_image(path, (SIDE, SIDE))))
        if isinstance(found, str):
            raise InputError(f"{path} can no longer be read: {found}", "restore it, and repeat the command")
        return found

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(measure, paths))
    return torch.from_numpy(np.stack(found))
