"""What label maps cost: bytes, the joint transforms of images and maps, and the training step with dense labels.

    python benchmarks/labels.py --images DIR [--maps MAPS] [--json]

DIR: a folder of class folders. bytes_per_image: of MAPS ('tilework annotate'), or, without it, of maps that
EfficientNet-Lite0 makes of some images, where its package is installed; raw: two bytes for a class, two for its score.
images_per_s: crop, flip, RandAugment and normalisation at 224 px of decoded images alone, and with decoding, moving and
pooling their maps. step_ratio: a step of LV-ViT-T with token labels over one without dense head and maps, on ready
batches. One core; medians of interleaved pairs with quartiles.
"""

from __future__ import annotations

import os
import sys

del sys.path[0]  # this folder: its tokenize.py would hide Python's own
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")  # one core, before numpy starts

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from tilework.augment import Augment, Flip, Normalise, RandAugment, RandomResizedCrop, apply_all
from tilework.core.batch import Batch, Target
from tilework.core.rng import Draws
from tilework.data import ImageFolder, decode_image
from tilework.data.label_maps import LabelMaps, MapsCard, write_maps
from tilework.data.score_map import ScoreMap
from tilework.evaluation.annotate import Annotator, annotate
from tilework.models import EfficientnetLite0Config, preset
from tilework.models.efficientnet_lite import published_weights
from tilework.objectives import Classify, Objective, TokenLabelConfig

CLASSES, PAIRS = 1000, 15
CHAIN: tuple[Augment, ...] = (RandomResizedCrop((224, 224)), Flip(), RandAugment(), Normalise())


def made(folder: ImageFolder, root: Path) -> LabelMaps:
    """Maps of all thousand classes by EfficientNet-Lite0 at 576 px."""
    config = EfficientnetLite0Config()
    model = config.build(3, (576, 576), CLASSES)
    model.load_state_dict(published_weights())
    annotator = Annotator(model, (Normalise(config.mean, config.std),), tuple(range(CLASSES)), 576, 5)
    names = tuple(str(i) for i in range(CLASSES))
    card = MapsCard(names, (18, 18), 5, "efficientnet_lite0", 576)
    write_maps(root / "maps", card, folder.keys, annotate(annotator, folder, torch.device("cpu")))
    return LabelMaps.open(root / "maps")


def pairs(one: Callable[[], object], two: Callable[[], object]) -> tuple[list[float], list[float]]:
    """Seconds of both, taking turns, after a first round."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(PAIRS + 1):
        for work, found in zip((one, two), times, strict=True):
            begun = perf_counter()
            work()
            if number:
                found.append(perf_counter() - begun)
    return times


def stepper(objective: Objective, batch: Batch) -> Callable[[], None]:
    """Forward, backward, update."""
    optimiser = torch.optim.AdamW(objective.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        objective(batch, Draws(0, 0, batch.index))["loss"].backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--maps", type=Path)
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    whole = ImageFolder.open(options.images)
    folder = whole.take(np.linspace(0, len(whole) - 1, min(options.limit, len(whole))).astype(int))
    with tempfile.TemporaryDirectory() as root:
        maps = made(folder, Path(root)) if options.maps is None else LabelMaps.open(options.maps)
        everything = np.arange(len(maps.records))
        stored = sum(map(len, maps.records.take(everything))) / len(everything)
        pixels = torch.from_numpy(np.stack([decode_image(path, (256, 256)) for path in folder.paths[:32]]))
        index = torch.arange(len(pixels))
        plain = Batch(pixels, Target.hard(index % 10), index)

        def alone() -> Batch:
            return apply_all(CHAIN, plain, Draws(0, 0, index))

        def joint() -> object:
            labelled = plain.changed(columns={"label_map": maps.take(index.numpy() % len(everything))})
            moved = apply_all(CHAIN, labelled, Draws(0, 0, index)).columns["label_map"]
            assert isinstance(moved, ScoreMap)
            return moved.target(14, 14)

        only, both = pairs(alone, joint)
        few = slice(8)
        ready = apply_all(CHAIN, plain.changed(columns={"label_map": maps.take(index.numpy())}), Draws(0, 0, index))
        batch = ready.changed(columns={})
        dense = preset("lv_vit_t", drop_path=0.0).build(3, (224, 224), CLASSES)
        bare = preset("lv_vit_t", drop_path=0.0, dense=False).build(3, (224, 224), CLASSES)
        with_labels = stepper(TokenLabelConfig().build(dense), ready.rows(few))
        without = stepper(Classify(bare), batch.rows(few))
        labelled_steps, plain_steps = pairs(with_labels, without)
    ratio = np.percentile(np.array(labelled_steps) / np.array(plain_steps), [25, 50, 75])
    speed = np.percentile(np.array(only) / np.array(both), [25, 50, 75])
    grid, top = maps.card.grid, maps.card.top
    result: dict[str, Any] = {
        "bytes_per_image": {"raw": grid[0] * grid[1] * top * 4, "stored": round(stored, 1)},
        "images_per_s": {
            "image_only": round(len(pixels) / float(np.median(only)), 1),
            "joint": round(len(pixels) / float(np.median(both)), 1),
            "ratio": [round(float(q), 4) for q in speed[[1, 0, 2]]],
        },
        "step_ratio": round(float(ratio[1]), 4),
        "step_ratio_quartiles": [round(float(ratio[0]), 4), round(float(ratio[2]), 4)],
    }
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for name, value in result.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
