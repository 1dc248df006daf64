"""Mask R-CNN on shapes whose outlines are known: average precision of boxes and outlines, beside boxes as outlines.

    python benchmarks/outlines.py PHOTOGRAPHS --out DIR [--seeds 3] [--steps 400] [--train 256] [--val 128] [--json]

Ellipses, triangles, rings and L-shapes, cut out of photographs and pasted on another, darkened one, later over earlier;
the class is the shape, and the outline is what is seen of it. A ring or an L does not fill its box, so "the box is the
outline" is a floor to beat. PHOTOGRAPHS is searched for JPEG files; those of validation images are others. Trains
`mask_cpu` for every seed ('tilework train', resumed where it stopped) and judges its answers on the validation images
twice: with its masks, and with every mask filled.
"""

from __future__ import annotations

import sys

del sys.path[0]  # this folder: its tokenize.py would hide Python's own

import argparse
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import numpy as np
from PIL import Image

from tilework.evaluation.average_precision import AveragePrecision, Found, run_length
from tilework.runs.detect import Finder

SIDE, MOST, LEAST_SEEN, DARK = 128, 5, 0.4, 0.3
SHAPES = ("ellipse", "triangle", "ring", "L")


def shape(kind: str, rng: np.random.Generator) -> np.ndarray:
    """A shape of random size, place and turn, (SIDE, SIDE) bool."""
    radius, angle = rng.uniform(12, 30), rng.uniform(0, 2 * np.pi)
    centre = rng.uniform(radius, SIDE - radius, 2)
    y, x = np.mgrid[:SIDE, :SIDE] + 0.5
    u = ((x - centre[0]) * np.cos(angle) + (y - centre[1]) * np.sin(angle)) / radius
    v = ((y - centre[1]) * np.cos(angle) - (x - centre[0]) * np.sin(angle)) / radius
    if kind == "ellipse":
        return u**2 + (v / rng.uniform(0.5, 0.9)) ** 2 < 1
    if kind == "triangle":
        return (v > -0.5) & (v < 1 - np.sqrt(3) * abs(u))
    if kind == "ring":
        return (np.hypot(u, v) < 1) & (np.hypot(u, v) > rng.uniform(0.5, 0.7))
    return (np.maximum(abs(u), abs(v)) < 0.9) & ((u < -0.3) | (v < -0.3))


def crop(path: Path, rng: np.random.Generator) -> np.ndarray:
    """A random square of a photograph, (SIDE, SIDE, 3)."""
    with Image.open(path) as image:
        rgb = image.convert("RGB")
    side = int(min(rgb.size) * rng.uniform(0.5, 1))
    left, top = (int(rng.integers(0, length - side + 1)) for length in rgb.size)
    return np.asarray(rgb.resize((SIDE, SIDE), Image.Resampling.BICUBIC, (left, top, left + side, top + side)))


def write_shapes(photographs: list[Path], count: int, seed: int, out: Path) -> Path:
    """Images and a COCO file."""
    rng, annotations, images = np.random.default_rng(seed), [], []
    (out / "images").mkdir(parents=True)
    for number in range(count):
        pixels = (DARK * crop(photographs[rng.integers(len(photographs))], rng)).astype(np.uint8)
        owner = np.full((SIDE, SIDE), -1)
        kinds, whole = rng.integers(0, len(SHAPES), rng.integers(2, MOST + 1)), []
        for i, kind in enumerate(kinds.tolist()):
            mask = shape(SHAPES[kind], rng)
            pixels[mask] = crop(photographs[rng.integers(len(photographs))], rng)[mask]
            owner[mask] = i
            whole.append(mask.sum())
        for i, kind in enumerate(kinds.tolist()):
            seen = owner == i
            if not seen.any():
                continue
            rows, columns = np.flatnonzero(seen.any(1)), np.flatnonzero(seen.any(0))
            left, top = int(columns[0]), int(rows[0])
            annotations.append({
                "id": len(annotations) + 1, "image_id": number, "category_id": kind + 1, "area": int(seen.sum()),
                "bbox": [left, top, int(columns[-1]) + 1 - left, int(rows[-1]) + 1 - top],
                "segmentation": run_length(seen),
                "iscrowd": int(seen.sum() < LEAST_SEEN * whole[i]),  # mostly hidden: neither right nor wrong
            })  # fmt: skip
        Image.fromarray(pixels).save(out / "images" / f"{number:04d}.png")
        images.append({"id": number, "file_name": f"{number:04d}.png", "height": SIDE, "width": SIDE})
    categories = [{"id": i + 1, "name": name} for i, name in enumerate(SHAPES)]
    file = out / "instances.json"
    file.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return file


class Filled(AveragePrecision):
    """The same answers, every outline its whole box."""

    def found(self) -> Iterator[Found]:
        """See `AveragePrecision.found`."""
        for one in super().found():
            yield replace(one, masks=None if one.masks is None else np.full_like(one.masks, 255))


def judge(run: Path, val: Path) -> dict[str, float]:
    """Average precision of boxes, of outlines, and of boxes as outlines."""
    finder = Finder.open(run)
    own, filled = (finder.evaluate(val, by).figures for by in (AveragePrecision, Filled))
    names = ("box_ap", "box_ap50", "mask_ap", "mask_ap50")
    return {name: own[name] for name in names} | {f"filled_{name}": filled[name] for name in names[2:]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--train", type=int, default=256)
    parser.add_argument("--val", type=int, default=128)
    parser.add_argument("--settings", nargs="*", default=["fit.precision=bf16"])
    options = parser.parse_args()
    walk = os.walk(options.photographs, followlinks=True)
    inside = (Path(folder) / name for folder, _, names in walk for name in names)
    files = sorted(path for path in inside if path.suffix.lower() in (".jpg", ".jpeg"))
    parts = {"train": (files[::2], options.train, 0), "val": (files[1::2], options.val, 1)}
    for name, (photographs, count, seed) in parts.items():
        if not (options.out / name / "instances.json").is_file():
            write_shapes(photographs, count, seed, options.out / name)
    train, val = (options.out / name / "instances.json" for name in parts)
    runs = []
    for seed in range(options.seeds):
        run = options.out / f"seed-{seed}"
        command = ["train", "mask_cpu", "--data", train, "--val", val, "--out", run, f"fit.seed={seed}"]
        settings = [f"fit.steps={options.steps}", *options.settings]
        if not (run / "results.json").is_file():
            subprocess.run([sys.executable, "-m", "tilework", *command, *settings], check=True, stdout=sys.stderr)
        runs.append(judge(run, val) | {"train_mask_ap": Finder.open(run).evaluate(train).figures["mask_ap"]})
    print(json.dumps({
        "images": {"train": options.train, "val": options.val}, "steps": options.steps, "runs": runs,
        "mean": {name: round(mean(run[name] for run in runs), 4) for name in runs[0]},
        "deviation": {name: round(stdev(run[name] for run in runs), 4) for name in runs[0]} if len(runs) > 1 else {},
    }, indent=1))  # fmt: skip


if __name__ == "__main__":
    main()
