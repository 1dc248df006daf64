"""Losses of the first steps of every objective, kept in losses.json: `python tests/golden/losses.py` writes them anew.

Every case is a recipe with a small network on data made here, trained for four steps. A change of code that changes a
number is a bug, unless the change is meant: then write the file again and review its diff.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import tilework
from small_data import write_images, write_objects, write_pairs
from tilework.core.config import resolve
from tilework.data import ImageFolder
from tilework.data.label_maps import MapsCard, write_maps
from tilework.store import StoreWriter
from tilework.store.label_maps import encode_map
from tilework.tokenizers import VitVqConfig, save_tokenizer

FILE = Path(__file__).with_name("losses.json")
CLASSES, COUNT, SIDE, PATCH = 3, 8, 128, 8
SMALL = ["fit.epochs=0", "fit.steps=4", "fit.batch=8", "fit.log_every=1", "fit.evaluate_every=0", "fit.picture_every=0"]
VIT = ["model.width=32", "model.depth=2", "model.heads=2", "fit.optim.stem_scale=1"]
VQ = ["model.width=32", "model.depth=1", "model.heads=2", "model.codes=32", "objective.warm_steps=2", "size=[64,64]"]
DETECTOR = (
    "model.backbone.widths=[8,8,16,16]",
    "model.backbone.depths=[1,1,1,1]",
    "model.backbone.heads=[1,1,2,2]",
    "model.channels=8",
    "size=[64,96]",
)


@dataclass(frozen=True)
class Case:
    """A recipe, what is changed of it, and what it learns from."""

    recipe: str
    settings: tuple[str, ...] = ()
    data: str = "images"
    maps: bool = False


CASES = {
    "classify": Case("seit_patch_cpu", (*VIT,), "store"),
    "classify_scored": Case("token_class_cpu", (*VIT, "objective={name: classify_scored, samples: 24}"), "store"),
    "classify_codes": Case("mtm_tuned_cpu", (*VIT,), "store"),
    "masked": Case("mtm_cpu", (*VIT, "objective.width=32", "objective.depth=1", "objective.heads=2"), "store"),
    "adapt": Case(
        "token_adapt_cpu", ("model.width=32", "model.heads=2", "model.code_dim=8", "objective.tokenizer=TOKENIZER")
    ),
    "reconstruct": Case("small_tokenizer", (*VQ,)),
    "reconstruct_adversarial": Case(
        "small_tokenizer_gan", (*VQ, "objective.adversarial.start=1", "objective.adversarial.width=8")
    ),
    "distil": Case("small_teacher_8x8", (*VQ, "objective.width=16", "objective.heads=2", "objective.depth=1")),
    "token_label": Case("lv_labels_cpu", (*VIT,), maps=True),
    "relabel": Case("lv_relabel_cpu", (*VIT,), maps=True),
    "tl_align": Case("tl_align_cpu", (*VIT,)),
    "tl_align_token_label": Case("lv_labels_cpu", (*VIT, "objective={name: tl_align_token_label}"), maps=True),
    "trans_mix": Case("trans_mix_cpu", (*VIT,)),
    "token_prop": Case("good_token_prop_cpu", (*VIT,)),
    "segment": Case(
        "seg_cpu",
        (
            "model.backbone.width=32",
            "model.backbone.depth=4",
            "model.backbone.heads=2",
            "model.channels=8",
            "objective.auxiliary_channels=8",
        ),
        "pairs",
    ),
    "detect": Case("detect_cpu", DETECTOR, "objects/instances.json"),
    "rcnn": Case("mask_cpu", (*DETECTOR, "model.hidden=8", "objective.regions=16"), "objects/instances.json"),
    "rcnn_boxes": Case(
        "mask_cpu",
        (*DETECTOR, "model.hidden=8", "model.masks=false", "objective={name: rcnn_boxes, regions: 16}"),
        "objects/instances.json",
    ),
    "moco": Case("good_moco_cpu", (*VIT, "model.positions=learnt", "objective.hidden=32", "objective.outputs=16")),
}


def write_data(root: Path) -> None:
    """Images, label maps of them, a tokenizer with random weights, and a store of random codes."""
    images = write_images(root / "images", CLASSES, COUNT, side=40)
    write_pairs(root / "pairs", COUNT)
    write_objects(root / "objects", COUNT)
    keys = ImageFolder.open(images).keys
    rng = np.random.default_rng(1)
    card = MapsCard(tuple(f"class{i}" for i in range(CLASSES)), (4, 4), 2, "chance", SIDE)
    ids = [np.argsort(rng.random((4, 4, CLASSES)), -1)[..., :2] for _ in keys]
    write_maps(root / "maps", card, keys, [[encode_map(one, np.full((4, 4, 2), [0.6, 0.3])) for one in ids]])
    torch.manual_seed(0)
    config = VitVqConfig(patch=PATCH, codes=32, code_dim=8, width=16, depth=1, heads=2)
    tokenizer = config.build(3, (SIDE, SIDE), 0)
    save_tokenizer(root / "tokenizer", tokenizer, config, (SIDE, SIDE))
    labels = np.arange(CLASSES * COUNT) % CLASSES
    codes = rng.integers(0, 32, (len(labels), SIDE // PATCH, SIDE // PATCH))
    codes = np.where(rng.random(codes.shape) < 0.5, labels[:, None, None] * 2, codes)
    with StoreWriter(root / "store", tokenizer.codebook.detach().numpy(), card.classes) as writer:
        writer.add(codes, labels, list(map(str, range(len(labels)))))


def losses(case: Case, root: Path, out: Path) -> dict[str, Any]:
    """Logged numbers of every step, and of the evaluation after the last one, on the training data."""
    settings = [s.replace("TOKENIZER", str(root / "tokenizer")) for s in (*SMALL, *case.settings)]
    settings += [f"maps={root / 'maps'}"] if case.maps else []
    run = resolve(tilework.recipes.recipes[case.recipe].run, None, settings)
    result = tilework.fit(run, root / case.data, root / case.data, out, "cpu", quiet=True)
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    steps = [{k: v for k, v in line.items() if k not in ("step", "epoch", "lr")} for line in lines if "norm" in line]
    names = list(steps[0])
    return {
        "steps": {name: [float(f"{step[name]:.6g}") for step in steps] for name in names},
        "evaluation": {name: float(f"{value:.6g}") for name, value in result.metrics.items()},
    }


def main() -> None:
    """Write the file."""
    torch.set_num_threads(1)
    os.environ["TILEWORK_KERNELS"] = "0"
    with TemporaryDirectory() as folder:
        root = Path(folder)
        write_data(root)
        found = {name: losses(case, root, root / f"run-{name}") for name, case in CASES.items()}
    FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
