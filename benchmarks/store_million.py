"""A store of a million images: how long it takes to open, and how much memory random batches take.

    python benchmarks/store_million.py [--images 1000000] [--json]

1,024-token images of 391 codes, coded by `rans`. Opening and reading happen in a fresh process; memory is what the
process holds of its own (RssAnon), beside the same process that has only imported the library; mapped pages are left
out, since the system takes them back when it needs them. Writing takes about three minutes and 2.5 GB of disk.
"""

from __future__ import annotations

import sys

del sys.path[0]  # this folder: its tokenize.py would hide Python's own

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

from tilework.store import StoreWriter

READ = """
import json, sys
from time import perf_counter
import numpy as np
from tilework.store import Store

def own():
    return next(int(line.split()[1]) / 1e3 for line in open("/proc/self/status") if line.startswith("RssAnon"))

bare = own()
begun = perf_counter()
store = Store(sys.argv[1])
first = store[len(store) // 2]
opened = perf_counter() - begun
rng, peak, begun = np.random.default_rng(0), own(), perf_counter()
for _ in range(200):
    store.batch(rng.integers(0, len(store), 256))
    peak = max(peak, own())
rate = 200 * 256 / (perf_counter() - begun)
found = {"open_and_first_image_s": opened, "memory_above_bare_mb": peak - bare, "batch_256_images_per_s": rate}
print(json.dumps(found))
"""


def write(path: Path, images: int) -> float:
    rng = np.random.default_rng(0)
    block = rng.choice(391, (4096, 32, 32), p=rng.dirichlet(np.full(391, 2.0)))
    begun = perf_counter()
    with StoreWriter(path, np.zeros((391, 32)), [str(i) for i in range(1000)], codec="rans") as writer:
        for start in range(0, images, len(block)):
            count = min(len(block), images - start)
            some = np.roll(block[:count], start // len(block), axis=2)
            keys = [f"class/{start + i:08d}.jpg" for i in range(count)]
            writer.add(some, np.arange(start, start + count) % 1000, keys)
    return perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "million.tok"
        seconds = write(path, options.images)
        rounds = [
            json.loads(subprocess.run([sys.executable, "-c", READ, path], capture_output=True, check=True).stdout)
            for _ in range(5)
        ]
    results = {name: float(np.median([one[name] for one in rounds])) for name in rounds[0]}
    results |= {"images": options.images, "write_images_per_s": options.images / seconds}
    if options.json:
        print(json.dumps(results))
    else:
        print("\n".join(f"{name:<26}{value:12,.3f}" for name, value in results.items()))


if __name__ == "__main__":
    main()
