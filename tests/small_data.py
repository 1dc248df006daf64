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


def write_pairs(root: Path, count: int = 8, sides: tuple[int, int] = (40, 56), seed: int = 0, void: int = 3) -> Path:
    """Images and masks of three classes: a ground, and discs and boxes of their own colours; a void line."""
    rng = np.random.default_rng(seed)
    for kind in ("images", "masks"):
        (root / kind).mkdir(parents=True)
    height, width = sides
    y, x = np.mgrid[:height, :width]
    colours = np.array([[40, 120, 40], [200, 60, 60], [60, 60, 210], [0, 0, 0]])
    for number in range(count):
        mask = np.zeros(sides, np.uint8)
        cy, cx, r = rng.integers(5, height - 5), rng.integers(5, width - 5), rng.integers(9, 15)
        mask[(y - cy) ** 2 + (x - cx) ** 2 < r * r] = 1
        top, left = rng.integers(0, height - 20), rng.integers(0, width - 20)
        mask[top : top + 20, left : left + 18] = 2
        mask[height // 2] = void
        pixels = colours[np.minimum(mask, 3)] + rng.integers(0, 40, (height, width, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(root / f"images/{number:03d}.png")
        Image.fromarray(mask).save(root / f"masks/{number:03d}.png")
    (root / "classes.txt").write_text("ground\ndisc\nbox\n")
    (root / "dataset.json").write_text(f'{{"void": [{void}]}}')
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
