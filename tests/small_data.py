"""Small data for tests: nothing here is downloaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from tilework.store import StoreWriter

CODES, CODE_DIM, GRID = 16, 8, (8, 8)


def write_images(root: Path, classes: int = 3, count: int = 8, side: int = 32, seed: int = 0) -> Path:
    """A class folder whose classes differ in colour and stripes."""
    rng = np.random.default_rng(seed)
    for label in range(classes):
        folder = root / f"class{label}"
        folder.mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 60, (side, side, 3))
            pixels[:: label + 2, :, label % 3] += 150
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:03d}.png")
    return root


def write_store(path: Path, count: int = 48, classes: int = 3, seed: int = 0) -> Path:
    """A store whose classes prefer different codes."""
    rng = np.random.default_rng(seed)
    codebook = np.random.default_rng(7).normal(size=(CODES, CODE_DIM)).astype(np.float32)
    labels = np.arange(count) % classes
    ids = rng.integers(0, CODES, (count, *GRID))
    favoured = rng.random((count, *GRID)) < 0.5
    ids = np.where(favoured, labels[:, None, None] * 2, ids)
    with StoreWriter(path, codebook, [f"class{i}" for i in range(classes)], codec="packed", shard_images=20) as writer:
        writer.add(ids, labels, [f"{i}.png" for i in range(count)])
    return path
