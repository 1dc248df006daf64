"""The tokenizer in the box beside the linear probe of its network's float features, image by image.

    python benchmarks/box_and_probe.py FRONTIER ...

FRONTIER: a directory of `tilework frontier` with rows box:pooled and box:corners. Prints for each form and seed the
accuracy of both, on how many images one is right and the other wrong, and McNemar's exact p.
"""

from __future__ import annotations

import sys

del sys.path[0]  # this folder: its tokenize.py would hide Python's own

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from tilework.evaluation.mcnemar import mcnemar
from tilework.evaluation.probe import linear_hits
from tilework.experiments.frontier_rows import PARTS
from tilework.runs import evaluate_run
from tilework.store import Store


def features(frontier: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Means of the network's map and class numbers, (N, D) and (N,)."""
    maps = np.load(frontier / f"maps/{part}.npy", mmap_mode="r")
    means = [torch.from_numpy(np.array(maps[i : i + 256])).float().mean((1, 2)) for i in range(0, len(maps), 256)]
    return torch.cat(means), torch.from_numpy(np.load(frontier / f"maps/{part}.labels.npy"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("frontiers", nargs="+", type=Path)
    for frontier in parser.parse_args().frontiers:
        probe = linear_hits(*(features(frontier, part) for part in PARTS))[0].numpy()
        for form in ("pooled", "corners"):
            val = frontier / f"data/box-{form}-val.tok"
            labels = np.asarray(Store(val).column("label")[:])
            for run in sorted((frontier / f"runs/box-{form}").glob("seed-*/run")):
                right = evaluate_run(run, val, None, "cpu").probabilities.argmax(1) == labels
                won, lost = int((right & ~probe).sum()), int((~right & probe).sum())
                print(json.dumps({"frontier": frontier.name, "form": form, "seed": run.parent.name[5:],
                                  "probe": float(probe.mean()), "box": float(right.mean()),
                                  "won": won, "lost": lost, "p": mcnemar(right, probe)}))  # fmt: skip


if __name__ == "__main__":
    main()
