"""What rounding pooled features costs: python benchmarks/pooled_codes.py FOLDER... [--steps 0.85 1.5] [--out FILE.json]

Cross-validation over all images of the folders (the same classes in each): accuracy of a linear classifier (L-BFGS, its
weight decay chosen on a tenth of the training part) on the pooled features of the tokenizer in the box, float32 and
rounded to so many deviations of each channel. Means and deviations are those of the training part; bytes are those of a
store of its codes. docs/results.md has the figures.

N images | D channels
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from tilework.data import ImageFolder, ImageSource
from tilework.data.loader import in_order
from tilework.evaluation.probe import linear_accuracy
from tilework.store import Store, StoreWriter
from tilework.tokenizers.box import LEVELS, load_box
from tilework.tokenizers.rounded import RoundedQuantiser, evenly_spaced


@torch.inference_mode()
def pooled(folder: ImageFolder) -> tuple[Tensor, Tensor]:
    """(N, D) and labels (N,)."""
    box, card = load_box()
    source = ImageSource.read(folder, card.size)
    found = [box.map(batch.x / 255).mean((1, 2)) for batch in in_order(source, 32)]
    return torch.cat(found), torch.from_numpy(source.labels)


def stored_bytes(ids: Tensor, table: Tensor) -> float:
    """Of the codes of an image in a store. ids: (N, D); table: (K, D)."""
    with TemporaryDirectory() as place:
        path = Path(place) / "x.tok"
        with StoreWriter(path, table.numpy(), ["all"], used=np.arange(len(table))) as writer:
            keys = [str(i) for i in range(len(ids))]
            writer.add(ids[:, None, None].int().numpy(), np.zeros(len(ids), np.int64), keys)
        return Store(path).sizes["tokens"] / len(ids)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("images", type=Path, nargs="+")
    parser.add_argument("--steps", type=float, nargs="+", default=[0.85])
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    classes = ImageFolder.open(words.images[0]).classes
    features, labels = map(torch.cat, zip(*(pooled(ImageFolder.open(p, classes)) for p in words.images), strict=True))
    fold = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)) % words.folds
    accuracy: dict[str, list[float]] = {}
    sizes: dict[str, list[float]] = {"float": [4.0 * features.shape[1]]}
    for held in range(words.folds):
        train, val = fold != held, fold == held
        read = {"float": features}
        for step in words.steps:
            codes = RoundedQuantiser(LEVELS, features.shape[1]).requires_grad_(False)
            codes.embedding.weight.copy_(evenly_spaced(features[train], LEVELS, step))
            ids = codes.nearest(features)
            read[f"rounded:{step:g}"] = codes.values(ids)
            sizes.setdefault(f"rounded:{step:g}", []).append(stored_bytes(ids[train], codes.codebook))
        for name, x in read.items():
            hit = linear_accuracy((x[train], labels[train]), (x[val], labels[val]))[0]
            accuracy.setdefault(name, []).append(round(100 * hit, 2))
        print(json.dumps({name: values[-1] for name, values in accuracy.items()}), flush=True)
    found = {
        "images": len(labels),
        "folds": words.folds,
        "rows": {
            name: {"bytes": mean(sizes[name]), "mean": mean(values), "deviation": stdev(values), "accuracy": values}
            for name, values in accuracy.items()
        },
    }
    print(json.dumps(found, indent=1))
    if words.out:
        words.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
