"""Random crops of whole images against crops of their middle square: images per second through the loader.

    python benchmarks/crops.py [--images N] [--rounds R] [--json]

Photographs of the scikit-image wheel as JPEG files (quality 90) of several sizes. Square: the middle square is decoded
at 256 px (or kept in memory), then cropped to 224 px on the device by the first augmentation. Whole: the crop is cut
while decoding. Both as uint8 batches that the next augmentation takes, on one core; rounds of both take turns, the
ratio is the median of the rounds' with quartiles. decode: loaders alone; with_crop: and the crop of the square.
"""

from __future__ import annotations

import os
import sys

del sys.path[0]  # this folder
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")  # one core, before numpy starts
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time

import numpy as np
from PIL import Image

from tilework.augment import WholeCrop, apply_all
from tilework.core.rng import Draws
from tilework.data import ImageFolder, ImageSource, Loader, RandomCrops, WholeImages
from tilework.data.image_files import to_rgb
from tilework.data.photographs import PHOTOGRAPHS, photograph_folder

CASES = {  # width, height of the files; square; crop; kept in memory
    "500x375, from files": ((500, 375), 256, 224, False),
    "1600x1200, from files": ((1600, 1200), 256, 224, False),
    "500x375, kept": ((500, 375), 256, 224, True),
    "96x96, kept": ((96, 96), 96, 88, True),
}


def write_files(root: Path, size: tuple[int, int], count: int) -> ImageFolder:
    """Photographs cut to a size."""
    for i in range(count):
        folder = root / "all"
        folder.mkdir(parents=True, exist_ok=True)
        with Image.open(photograph_folder() / PHOTOGRAPHS[i % len(PHOTOGRAPHS)]) as file:
            to_rgb(file).resize(size, Image.Resampling.BICUBIC).save(folder / f"{i:04d}.jpg", quality=90)
    return ImageFolder.open(root)


def measure(case: str, root: Path, count: int, rounds: int) -> dict[str, object]:
    """Seconds of processor time per image of each way, and their ratios."""
    size, side, side_of_crop, kept = CASES[case]
    crop = WholeCrop((side_of_crop, side_of_crop))
    folder = write_files(root, size, count)
    square = ImageSource.read(folder, (side, side))
    images = WholeImages.scan(folder, (side, side), crop.size)
    if not kept:
        square._kept, images._whole = None, None
    cut = RandomCrops(images, ImageSource.blank(folder, (1, 1)), crop.size, crop.area, crop.aspect)

    def squares(then_crop: bool) -> None:
        for batch in Loader(square, 14).run(0, count // 14):
            if then_crop:
                apply_all([crop], batch, Draws(0, 0, batch.index))

    def whole() -> None:
        for _ in Loader(cut, 14).run(0, count // 14):
            pass

    def time(do: Callable[[], None]) -> float:
        begun = process_time()
        do()
        return (process_time() - begun) / (count // 14 * 14)

    rows = []
    for i in range(rounds + 1):
        ways = [lambda: squares(False), lambda: squares(True), whole]
        order = (0, 1, 2) if i % 2 else (2, 1, 0)
        taken = {way: time(ways[way]) for way in order}
        rows.append([taken[0], taken[1], taken[2]])
    alone, cropped, ours = np.array(rows[1:]).T  # the first round warms up
    shown = {"square_ms": alone, "square_and_crop_ms": cropped, "whole_ms": ours}
    result: dict[str, object] = {name: round(float(np.median(x)) * 1e3, 3) for name, x in shown.items()}
    for name, ratio in (("decode", ours / alone), ("with_crop", ours / cropped)):
        result[f"whole/square, {name}"] = np.quantile(ratio, [0.25, 0.5, 0.75]).round(3).tolist()
    return result


def main() -> None:
    """Print the figures of every case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=56)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            found[case] = measure(case, Path(folder), arguments.images, arguments.rounds)
        if not arguments.json:
            print(case, found[case], flush=True)
    if arguments.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
