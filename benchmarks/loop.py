"""What the training loop costs beside the model: around an almost empty one, and around a ViT-Ti, on one core.

    python benchmarks/loop.py [--pairs 31] [--json]

32x32 grids of 391 codes with 32 dimensions; store, order, Token-EDA, Token-RRC to 28x28, CutMix, Emb-Noise, loss,
update, logging. overhead: a line through the mean steps at batches of 16, 64 and 256 around a model that averages
the map and classifies. step_seconds: the loop's step around a ViT-Ti and a bare step (forward, backward, update) on a
ready tensor, taking turns, batch 32; ratio is the median of the pairs' with quartiles. All in seconds of the processor,
the loader's thread included, so that other work on the machine counts little. --pairs 0 leaves the ViT-Ti out.
"""

from __future__ import annotations

import os
import sys

del sys.path[0]  # this folder: its tokenize.py would hide Python's own
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")  # one core, before numpy starts
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # the loader's thread shares it

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import process_time

import numpy as np
import torch
from torch import Tensor, nn

from tilework.augment import CutMix, EmbeddingNoise, TokenCrop, TokenEda, apply_all
from tilework.core.batch import Mix
from tilework.core.distributed import World
from tilework.core.rng import Draws
from tilework.data import TokenSource
from tilework.models import Model, Output, create_model
from tilework.objectives import Classify
from tilework.store import Store, StoreWriter
from tilework.train import FitConfig, Job, OptimConfig, fit

K, C, GRID, CROP, CLASSES = 391, 32, 32, 28, 1000
CPU = World(0, 1, torch.device("cpu"))


class Average(Model):
    """Mean of the map, then a linear layer: as little as a classifier can be."""

    takes = "map"
    grid = (CROP, CROP)

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(C, CLASSES)

    def forward(self, x: Tensor, *, mix: Mix | None = None, keep: Tensor | None = None, track: bool = False) -> Output:
        mean = x.mean((2, 3))
        return Output(self.head(mean), mean[:, None], x, self.grid)


@dataclass
class Bench:
    source: TokenSource
    folder: Path
    number: int = 0

    def job(self, model: Model, batch: int, steps: int) -> Job:
        self.number += 1
        codebook = self.source.codebook
        chain = (TokenEda(), TokenCrop((CROP, CROP)), CutMix(), EmbeddingNoise())
        config = FitConfig(epochs=0, steps=steps, batch=batch, save_every=10**9, optim=OptimConfig(lr=1e-4))
        augment = tuple(step.build(codebook) for step in chain)
        return Job(Classify(model), self.source, augment, config, self.folder / str(self.number), CPU, quiet=True)

    def step_seconds(self, batch: int) -> float:
        """Mean seconds of a step around the almost empty model, reading ahead included."""
        part = self.source.together // batch  # steps of which the samples are decoded at once
        job, times = self.job(Average(), batch, 3 * part + 1), [process_time()]
        job.out.mkdir(parents=True)
        job.after_step = lambda step: times.append(process_time())
        fit(job)
        return (times[-2] - times[part]) / (len(times) - 2 - part)  # not the first ones, nor the last, which saves

    def pairs(self, count: int, batch: int = 32) -> tuple[list[float], list[float]]:
        """Seconds of steps in the loop and of bare steps, taking turns."""
        job = self.job(_vit(), batch, count + 3)
        job.out.mkdir(parents=True)
        model, some = _vit(), self.source.batch(np.arange(batch))
        ready = apply_all(job.augment, some, Draws(0, 0, some.index))
        objective = Classify(model)
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        looped: list[float] = []
        bare: list[float] = []
        left = process_time()

        def turn(step: int) -> None:
            nonlocal left
            looped.append(process_time() - left)
            begun = process_time()
            objective(ready, Draws(0, 0, ready.index))["loss"].backward()
            optimiser.step()
            optimiser.zero_grad()
            bare.append(process_time() - begun)
            left = process_time()

        job.after_step = turn
        fit(job)
        return looped[2:-1], bare[2:-1]


def _vit() -> Model:
    model = create_model("vit_ti", input="tokens", grid=(CROP, CROP), code_dim=C, classes=CLASSES, pool="mean")
    assert isinstance(model, Model)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=31)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        codebook = rng.normal(size=(K, C)).astype(np.float32)
        with StoreWriter(Path(folder) / "x.tok", codebook, [str(i) for i in range(CLASSES)]) as writer:
            ids = rng.integers(0, K, (8192, GRID, GRID))
            writer.add(ids, rng.integers(0, CLASSES, 8192), [f"{i}.jpg" for i in range(8192)])
        bench = Bench(TokenSource(Store(Path(folder) / "x.tok")), Path(folder))
        sizes = (16, 64, 256)
        seconds = [bench.step_seconds(batch) for batch in sizes]
        per_image, per_step = np.polyfit(sizes, seconds, 1)
        looped, bare = bench.pairs(options.pairs) if options.pairs else ([], [])
    result = {
        "overhead": {"ms_per_image": round(1e3 * per_image, 4), "ms_per_step": round(1e3 * per_step, 3)},
        "almost_empty_step_ms": {str(b): round(1e3 * s, 2) for b, s in zip(sizes, seconds, strict=True)},
    }
    text = [f"loop: {1e3 * per_image:.3f} ms per image and {1e3 * per_step:.2f} ms per step"]
    if looped:
        low, middle, high = np.percentile(np.array(looped) / np.array(bare), [25, 50, 75])
        result |= {
            "step_seconds": {"bare": round(float(np.median(bare)), 4), "fit": round(float(np.median(looped)), 4)},
            "ratio": [round(float(q), 4) for q in (low, middle, high)],
        }
        text.append(f"ViT-Ti: fit {middle:.3f} of the bare step (quartiles {low:.3f} to {high:.3f})")
    print(json.dumps(result, indent=2) if options.json else "\n".join(text))


if __name__ == "__main__":
    main()
