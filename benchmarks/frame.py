"""What the frame itself costs: start-up of the command line, order, random numbers, packed store, loader.

    python benchmarks/frame.py [--json]

One core. Rates are medians of 15 rounds with quartiles.
"""

from __future__ import annotations

import sys

del sys.path[0]  # this folder: its tokenize.py would hide Python's own

import json
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from tilework.core.rng import uniform
from tilework.data import Loader, TokenSource, epoch_order
from tilework.store import Store, StoreWriter

ROUNDS, IMAGES = 15, 4096


def quartiles(work: Callable[[], object], amount: float) -> list[float]:
    """Amount per second: lower quartile, median, upper quartile."""
    work()
    rates = []
    for _ in range(ROUNDS):
        begun = perf_counter()
        work()
        rates.append(amount / (perf_counter() - begun))
    return [round(float(q), 1) for q in np.percentile(rates, [25, 50, 75])]


def help_seconds() -> list[float]:
    command = [sys.executable, "-m", "tilework", "--help"]
    return [
        round(1 / q, 3) for q in quartiles(lambda: subprocess.run(command, capture_output=True, check=True), 1)[::-1]
    ]


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 391, (IMAGES, 32, 32))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.tok"
        with StoreWriter(path, rng.normal(size=(391, 32)), ["a", "b"]) as writer:
            writer.add(ids, np.arange(IMAGES) % 2, [str(i) for i in range(IMAGES)])
        store = Store(path)
        everything = np.arange(IMAGES)
        loader = Loader(TokenSource(store), batch=256)
        results = {
            "help_seconds": help_seconds(),
            "order_samples_per_s": quartiles(lambda: epoch_order(0, 0, 1 << 20), 1 << 20),
            "uniforms_per_s": quartiles(lambda: uniform(0, 0, everything, "x", 4), 4 * IMAGES),
            "decode_images_per_s": quartiles(lambda: store.batch(everything), IMAGES),
            "loader_images_per_s": quartiles(lambda: list(loader.run(0, loader.steps)), IMAGES),
            "bytes_per_image": sum(store.sizes.values()) / IMAGES,
        }
    if "--json" in sys.argv:
        print(json.dumps(results))
        return
    for name, value in results.items():
        print(f"{name:<22}{value if isinstance(value, float) else '  '.join(f'{q:>12,}' for q in value)}")


if __name__ == "__main__":
    main()
