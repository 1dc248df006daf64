"""Small data for tests: nothing here is downloaded."""

from __future__ import annotations

import json
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


COLOURS = ((210, 60, 60), (60, 60, 220), (70, 190, 70))  # of discs, squares and rings


def write_objects(
    root: Path, count: int = 8, sides: tuple[int, int] = (64, 96), seed: int = 0, most: int = 3, rle: bool = False
) -> Path:
    """Images and a COCO file of discs, squares and rings of their own colours, some of them partly hidden.

    Category ids have gaps, the last image has no object, and every object's box and outline are exact. rle: outlines as
    run lengths; else as polygons, those of discs and rings of 40 points. Returns the file.
    """
    rng = np.random.default_rng(seed)
    (root / "images").mkdir(parents=True)
    (height, width), (y, x) = sides, np.mgrid[: sides[0], : sides[1]] + 0.5
    images, annotations = [], []
    for number in range(count):
        pixels = rng.integers(90, 130, (height, width, 3))
        for _ in range(0 if number == count - 1 else rng.integers(1, most + 1)):
            kind, r = int(rng.integers(3)), float(rng.integers(8, min(sides) // 4))
            cy, cx = rng.uniform(r, height - r), rng.uniform(r, width - r)
            far = np.hypot(y - cy, x - cx)
            square = (abs(y - cy) < r) & (abs(x - cx) < r)
            mask = (far < r, square, (far < r) & (far > r / 2))[kind]
            pixels[mask] = np.array(COLOURS[kind]) + rng.integers(-20, 20, 3)
            rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
            left, top = float(columns[0]), float(rows[0])
            angle = np.arange(40) / 40 * 2 * np.pi
            round_ = np.stack([cx + r * np.cos(angle), cy + r * np.sin(angle)], 1).reshape(-1).tolist()
            corners = [cx - r, cy - r, cx + r, cy - r, cx + r, cy + r, cx - r, cy + r]
            runs = {"size": [height, width], "counts": _runs(mask)}
            annotations.append({
                "id": len(annotations) + 7, "image_id": 10 * number, "category_id": (3, 17, 40)[kind], "iscrowd": 0,
                "bbox": [left, top, columns[-1] + 1 - left, rows[-1] + 1 - top], "area": int(mask.sum()),
                "segmentation": runs if rle or kind == 2 else [corners if kind == 1 else round_],
            })  # fmt: skip
        name = f"{number:03d}.png"
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / "images" / name)
        images.append({"id": 10 * number, "file_name": name, "height": height, "width": width})
    categories = [{"id": 40, "name": "ring"}, {"id": 3, "name": "disc"}, {"id": 17, "name": "square"}]
    plain = {"images": images, "annotations": annotations, "categories": categories}
    file = root / "instances.json"
    file.write_text(json.dumps(plain, default=float))
    return file


def _runs(mask: np.ndarray) -> list[int]:
    """Lengths of runs of a mask's columns, the first without the object."""
    flat = np.concatenate([[False], mask.T.reshape(-1)])
    ends = np.flatnonzero(flat[1:] != flat[:-1])
    return np.diff([0, *ends, mask.size]).tolist()


def write_voc(root: Path, boxes: dict[str, list[tuple[str, int, int, int, int]]], part: str = "train") -> Path:
    """Grey images and XML files of Pascal VOC, boxes as the format counts them. Returns the list of names."""
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name, objects in boxes.items():
        Image.new("RGB", (60, 40), (90, 90, 90)).save(root / f"JPEGImages/{name}.jpg")
        listed = "".join(
            f"<object><name>{kind}</name><difficult>{int(kind == 'hard')}</difficult><bndbox><xmin>{a}</xmin>"
            f"<ymin>{b}</ymin><xmax>{c}</xmax><ymax>{d}</ymax></bndbox></object>"
            for kind, a, b, c, d in objects
        )
        size = "<size><width>60</width><height>40</height><depth>3</depth></size>"
        (root / f"Annotations/{name}.xml").write_text(f"<annotation>{size}{listed}</annotation>")
    names = root / f"ImageSets/Main/{part}.txt"
    names.write_text("\n".join(boxes) + "\n")
    return names


def write_store(path: Path, count: int = 48, classes: int = 3, seed: int = 0, labels: np.ndarray | None = None) -> Path:
    """A store whose classes prefer different codes."""
    rng = np.random.default_rng(seed)
    codebook = np.random.default_rng(7).normal(size=(CODES, CODE_DIM)).astype(np.float32)
    labels = np.arange(count) % classes if labels is None else labels
    count = len(labels)
    ids = rng.integers(0, CODES, (count, *GRID))
    favoured = rng.random((count, *GRID)) < 0.5
    ids = np.where(favoured, labels[:, None, None] * 2, ids)
    with StoreWriter(path, codebook, [f"class{i}" for i in range(classes)], codec="packed", shard_images=20) as writer:
        writer.add(ids, labels, [f"{i}.png" for i in range(count)])
    return path
