"""What a step of detection costs beside the classifier's step of the same backbone, and how much memory it takes.

    python benchmarks/detect.py [--side 800] [--batch 1] [--model pvt_v2_b1] [--rounds 15] [--kinds classifier ...]

Each network is in a process of its own; they take turns, a step each, on one thread. Seconds of the processor, medians
with quartiles; ratios to the first kind are those of the rounds. Memory is the growth of the largest resident size.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np
import torch

from tilework.core.batch import Batch, Target
from tilework.core.rng import Draws
from tilework.data.boxes import Boxes
from tilework.data.objects import Objects
from tilework.models import CascadeMaskRcnnConfig, MaskRcnnConfig, RetinanetConfig, preset
from tilework.objectives import ClassifyConfig, DetectConfig, Objective, RcnnConfig
from tilework.objectives.rcnn import Step

KINDS = ("classifier", "retinanet", "mask_rcnn", "cascade_mask_rcnn")
CLASSES, OBJECTS = 80, 8


def build(kind: str, name: str, side: int) -> Objective:
    grid, backbone = (side, side), preset(name)
    if kind == "classifier":
        return ClassifyConfig().build(backbone.build(3, grid, CLASSES))
    if kind == "retinanet":
        return DetectConfig().build(RetinanetConfig(backbone).build(3, grid, CLASSES))
    if kind == "mask_rcnn":
        return RcnnConfig().build(MaskRcnnConfig(backbone).build(3, grid, CLASSES))
    return RcnnConfig(steps=(Step(),) * 3).build(CascadeMaskRcnnConfig(backbone).build(3, grid, CLASSES))


def objects(side: int, seed: int) -> tuple[Objects, tuple[np.ndarray, np.ndarray]]:
    """Boxes of 1/16 to 1/3 of the side, and themselves as outlines."""
    rng = np.random.default_rng(seed)
    sizes = rng.uniform(side / 16, side / 3, (OBJECTS, 2))
    corner = rng.uniform(0, side - sizes)
    edges = np.concatenate([corner, corner + sizes], 1)
    layers = np.zeros((OBJECTS, side, side), np.uint8)
    for i, (x0, y0, x1, y1) in enumerate(edges.astype(int)):
        layers[i, y0:y1, x0:x1] = 1
    which = np.stack([np.arange(OBJECTS), np.ones(OBJECTS, np.int64)], 1)
    return Objects.of(edges.tolist(), rng.integers(0, CLASSES, OBJECTS).tolist()), (layers, which)


def take_steps(kind: str, name: str, side: int, count: int) -> None:
    """A step for every line that comes in, and its seconds as an answer; parameters and memory at the end."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    objective = build(kind, name, side).train()
    optimiser = torch.optim.AdamW(objective.parameters(), lr=1e-4, fused=True)
    index = torch.arange(count)
    made = [objects(side, i) for i in range(count)]
    column = Boxes.of([one for one, _ in made], torch.full((count, 2), float(side)), layers=[ids for _, ids in made])
    batch = Batch(torch.randn(count, 3, side, side), Target.hard(index), index, {"boxes": column})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def step() -> None:
        objective(batch, Draws(0, 0, index))["loss"].backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    step()
    print("ready", flush=True)
    for _ in sys.stdin:
        begun = time.process_time()
        step()
        print(time.process_time() - begun, flush=True)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        parameters = sum(p.numel() for p in objective.parameters())
        print(json.dumps({"parameters": parameters, "mb": round((after - before) / 1024)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pvt_v2_b1")
    parser.add_argument("--side", type=int, default=800)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--kind", default="", choices=("", *KINDS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.kind:
        take_steps(given.kind, given.model, given.side, given.batch)
        return
    pipe = subprocess.PIPE
    workers = {
        kind: subprocess.Popen([sys.executable, *sys.argv, "--kind", kind], stdin=pipe, stdout=pipe, text=True)
        for kind in given.kinds
    }
    for worker in workers.values():
        assert worker.stdout is not None
        worker.stdout.readline()
    seconds: dict[str, list[float]] = {kind: [] for kind in workers}
    told: dict[str, dict[str, float]] = {}
    for _ in range(given.rounds):
        for kind, worker in workers.items():
            assert worker.stdin is not None
            assert worker.stdout is not None
            print(file=worker.stdin, flush=True)
            seconds[kind].append(float(worker.stdout.readline()))
            told[kind] = json.loads(worker.stdout.readline())
    first = np.array(seconds[given.kinds[0]])
    for kind, values in seconds.items():
        told[kind] |= {
            "seconds": np.quantile(values, (0.25, 0.5, 0.75)).round(3).tolist(),
            "ratio": np.quantile(np.array(values) / first, (0.25, 0.5, 0.75)).round(3).tolist(),
        }
    for worker in workers.values():
        worker.communicate()
    print(json.dumps({"model": given.model, "side": given.side, "batch": given.batch, **told}, indent=1))


if __name__ == "__main__":
    main()
