"""What a dense step costs beside the classifier's step of the same backbone, and how much memory ViT-S takes at 512 px.

python benchmarks/segment.py [--side 512] [--batch 2] [--model deit_s] [--steps 2]
One line of JSON. CPU seconds of one thread; memory is the growth of the largest resident size, in a process of its own.
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
from tilework.data.class_mask import ClassMask
from tilework.models import UpernetConfig, preset
from tilework.objectives import ClassifyConfig, Objective, SegmentConfig

KINDS = ("classifier", "upernet", "upernet_multilevel")


def build(kind: str, name: str, side: int) -> Objective:
    grid = (side, side)
    if kind == "classifier":
        return ClassifyConfig().build(preset(name).build(3, grid, 150))
    neck = "multilevel" if kind.endswith("multilevel") else "none"
    return SegmentConfig().build(UpernetConfig(preset(name), neck=neck).build(3, grid, 150))


def measure(kind: str, name: str, side: int, count: int, steps: int) -> dict[str, float]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    objective = build(kind, name, side).train()
    optimiser = torch.optim.AdamW(objective.parameters(), lr=1e-4, fused=True)
    index = torch.arange(count)
    masks = [np.random.default_rng(i).integers(0, 150, (side, side)).astype(np.uint8) for i in range(count)]
    batch = Batch(torch.randn(count, 3, side, side), Target.hard(index), index, {"mask": ClassMask.of(masks)})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def step() -> None:
        objective(batch, Draws(0, 0, index))["loss"].backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    step()
    begun = time.process_time()
    for _ in range(steps):
        step()
    seconds = (time.process_time() - begun) / steps
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    parameters = sum(p.numel() for p in objective.parameters())
    return {"parameters": parameters, "cpu_seconds_per_step": round(seconds, 3), "mb": round((after - before) / 1024)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="deit_s")
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--kind", default="", choices=("", *KINDS))
    given = parser.parse_args()
    if given.kind:
        print(json.dumps(measure(given.kind, given.model, given.side, given.batch, given.steps)))
        return
    found = {}
    for kind in KINDS:
        ended = subprocess.run([sys.executable, *sys.argv, "--kind", kind], capture_output=True, text=True, check=True)
        found[kind] = json.loads(ended.stdout)
    print(json.dumps({"model": given.model, "side": given.side, "batch": given.batch, **found}))


if __name__ == "__main__":
    main()
