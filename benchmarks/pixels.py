"""Random resized crops of JPEG files beside torch's DataLoader with Pillow, and how soon the first batch is there.

    python benchmarks/pixels.py [--images N] [--rounds R] [--files N] [--cases CASE ...] [--json FILE]

Photographs of the scikit-image wheel as JPEG files (quality 90). Both read whole files, draw the box of a random
resized crop (torchvision's ten tries), let libjpeg scale while it decodes (draft), resize bicubically to 224 px and
give uint8 batches of 28. Theirs: a worker process of a DataLoader, persistent, tensors through shared memory. Ours:
threads. Processor time of all processes together on one core, so that images per second of a core compare; rounds of
both take turns, the ratio is the median of the rounds' with quartiles. Start: 100,000 files in 100 folders, from the
folder's name to the first batch of 28, 15 times, on all cores.
"""

from __future__ import annotations

import os
import sys

del sys.path[0]  # this folder
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")  # one core, before numpy starts
CORES = os.sched_getaffinity(0)
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import argparse
import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from tilework.data import ImageFolder, ImageSource, Loader
from tilework.data.image_files import to_rgb
from tilework.data.photographs import PHOTOGRAPHS, photograph_folder
from tilework.data.streamed_images import Streamed, StreamedImages

SIDE, BATCH, STARTS = 224, 28, 15
AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)
CASES = {"500x375": (500, 375), "1600x1200": (1600, 1200)}


class Crops(Dataset[tuple[torch.Tensor, int]]):
    """What a good engineer writes with Pillow."""

    def __init__(self, paths: list[str], labels: list[int]) -> None:
        self.paths, self.labels = paths, labels

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[i]) as image:
            left, top, width, height = self.box(*image.size)
            sides = image.size
            wanted = math.ceil(1.5 * SIDE * sides[0] / width), math.ceil(1.5 * SIDE * sides[1] / height)
            image.draft("RGB", wanted)
            x, y = image.width / sides[0], image.height / sides[1]
            box = left * x, top * y, min((left + width) * x, image.width), min((top + height) * y, image.height)
            cut = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC, box)
        return torch.from_numpy(np.array(cut).transpose(2, 0, 1)), self.labels[i]

    @staticmethod
    def box(width: int, height: int) -> tuple[int, int, int, int]:
        for _ in range(10):
            share, aspect, across, down = torch.rand(4).tolist()
            area = width * height * (AREA[0] + (AREA[1] - AREA[0]) * share)
            ratio = math.exp(math.log(ASPECT[0]) + (math.log(ASPECT[1]) - math.log(ASPECT[0])) * aspect)
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return int(across * (width - w + 1)), int(down * (height - h + 1)), w, h
        return 0, 0, width, height


def write_files(root: Path, size: tuple[int, int], count: int) -> ImageFolder:
    folder = root / "all"
    folder.mkdir(parents=True)
    for i in range(count):
        with Image.open(photograph_folder() / PHOTOGRAPHS[i % len(PHOTOGRAPHS)]) as file:
            to_rgb(file).resize(size, Image.Resampling.BICUBIC).save(folder / f"{i:04d}.jpg", quality=90)
    return ImageFolder.open(root)


def streamed(folder: ImageFolder) -> Streamed:
    images = StreamedImages.open(folder, (256, 256), 0.05, "cover", str(folder.root))
    return Streamed(images, ImageSource.blank(folder, (1, 1)), ((SIDE, SIDE), AREA, ASPECT))


def busy(pid: int) -> float:
    """Processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(root: Path, size: tuple[int, int], count: int, rounds: int) -> dict[str, object]:
    """Processor milliseconds of an image of each, and the ratio of images per second of a core."""
    folder = write_files(root, size, count)
    dataset = Crops(list(map(str, folder.paths)), folder.labels.tolist())
    theirs = DataLoader(dataset, BATCH, shuffle=True, num_workers=1, persistent_workers=True, prefetch_factor=4)
    source = streamed(folder)
    seen: set[int] = set()

    def workers() -> float:
        return sum(busy(worker.pid) for worker in getattr(theirs._iterator, "_workers", ()))  # type: ignore[union-attr]

    def run_theirs() -> float:
        begun = process_time() + workers()
        for _ in theirs:
            pass
        return process_time() + workers() - begun

    def run_ours(epoch: list[int] = [0]) -> float:  # noqa: B006 (it counts)
        begun, steps = process_time(), count // BATCH
        for batch in Loader(source, BATCH).run(epoch[0] * steps, (epoch[0] + 1) * steps):
            seen.update(batch.index.tolist())
        epoch[0] += 1
        return process_time() - begun

    ways: list[Callable[[], float]] = [run_ours, run_theirs]
    rows = []
    for i in range(rounds + 1):
        taken = {way: ways[way]() / count for way in ((0, 1) if i % 2 else (1, 0))}
        rows.append([taken[0], taken[1]])
    assert len(seen) == count
    ours, other = np.array(rows[1:]).T  # the first round warms up
    return {
        "ours_ms": round(float(np.median(ours)) * 1e3, 3),
        "dataloader_ms": round(float(np.median(other)) * 1e3, 3),
        "images per second of a core, ours/dataloader": np.quantile(other / ours, [0.25, 0.5, 0.75]).round(3).tolist(),
    }


def start(root: Path, files: int) -> dict[str, object]:
    """Seconds from the name of a folder to the first batch, on all cores, as often as STARTS says."""
    first = write_files(root / "one", (500, 375), 1).paths[0].read_bytes()
    for number in range(files):
        path = root / "many" / f"n{number % 100:08d}" / f"n{number:08d}.jpg"
        if number < 100:  # links from there on: a file may have some ten thousand
            path.parent.mkdir(parents=True)
            path.write_bytes(first)
        else:
            os.link(path.with_name(f"n{number % 100:08d}.jpg"), path)
    os.sched_setaffinity(0, CORES)
    rows = []
    for _ in range(STARTS):
        begun, clock = process_time(), perf_counter()
        folder = ImageFolder.open(root / "many")
        listed = process_time() - begun
        next(Loader(streamed(folder), BATCH).run(0, 1))
        rows.append((listed, process_time() - begun, perf_counter() - clock))
    names = ("list, processor s", "first batch, processor s", "first batch, clock s")
    quartiles = np.quantile(rows, [0, 0.25, 0.5, 0.75], axis=0).T.round(3).tolist()
    found = {f"{name}: least and quartiles": row for name, row in zip(names, quartiles, strict=True)}
    return {"files": files, "starts": STARTS, "load of the machine": round(os.getloadavg()[0], 1), **found}


def main() -> None:
    """Print the figures of every case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=112)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    arguments = parser.parse_args()
    found: dict[str, object] = {"command": " ".join(sys.argv)}
    if arguments.json and arguments.json.is_file():  # cases may be measured one after another
        found = json.loads(arguments.json.read_text())
    for case in arguments.cases:
        with tempfile.TemporaryDirectory() as folder:
            found[case] = measure(Path(folder), CASES[case], arguments.images, arguments.rounds)
            print(case, found[case], flush=True)
    with tempfile.TemporaryDirectory() as folder:
        found["start"] = start(Path(folder), arguments.files)
        print("start", found["start"], flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
