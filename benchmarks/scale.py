"""What grows with the number of images: memory and time of tokenizing's list, order, seal and open.

    python benchmarks/scale.py --images 100000 1000000 10000000 --json results/scale.json

Every figure comes from a process of its own: peak memory above what it had before the work began (ru_maxrss), and
seconds, of the clock and of the processor. Images are synthetic, with 16 codes each: what is measured is what there is
per image, not its codes. The driver of tokenizing keeps the list of images and hashes it; names come from a generator
in place of a walk through the file system. Rows that a file has already are kept and not measured again.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

KINDS = ["order: permutation", "order: stream", "tokenize driver", "seal, source order", "seal", "open"]
KINDS += ["open every shard"]
GRID, CODES, PART = (4, 4), 256, 1024


def spool(root: Path, images: int) -> None:
    from tilework.store import Plan, Spool, spool_of

    parts = -(-images // PART)
    plan = Plan(CODES, GRID, tuple(map(str, range(1000))), parts=parts)
    made = Spool.create(spool_of(root / "x.tok"), plan, np.random.default_rng(0).normal(size=(CODES, 4)))
    rng = np.random.default_rng(1)
    for number in range(parts):
        count = min(PART, images - number * PART)
        keys = [f"n{number:08d}/n{number:08d}_{i:06d}.JPEG" for i in range(count)]
        columns = {"label": np.full(count, number % 1000), "key": keys}
        made.put(number, rng.integers(0, CODES, (count, *GRID)), columns)


def work(what: str, root: Path, images: int) -> None:
    from tilework.store import Spool, Store, seal, spool_of

    path = root / "x.tok"
    if what in ("seal", "seal, source order"):
        seal(Spool.open(spool_of(path)), path, "rans", shuffle=what == "seal")
    elif what == "open":
        store = Store(path)
        store.batch(np.arange(1))
    elif what == "open every shard":
        store = Store(path)
        store.batch(np.arange(0, images, 1 << 14))
    elif what == "order: permutation":
        from tilework.data.order import epoch_order

        epoch_order(0, 0, images)
    elif what == "order: stream":
        from tilework.data.order import StreamOrder, batch_of

        sizes = np.full(-(-images // (1 << 16)), 1 << 16)
        sizes[-1] = images - sizes[:-1].sum()
        order = StreamOrder(0, 0, sizes, 1024, 16)
        for step in range(0, images // 1024, max(1, images // 1024 // 20)):
            batch_of(order, step, 1024)
    elif what == "tokenize driver":
        from tilework.data.file_list import FileList
        from tilework.data.image_folder import ImageFolder
        from tilework.tokenizers.image_codes import digest_of

        names = (f"n{i // 1024:08d}/n{i:08d}_{i % 1024:06d}.JPEG" for i in range(images))
        files, classes = FileList(Path("photos"), names), tuple(map(str, range(images // 1024 + 1)))
        digest_of(ImageFolder(Path("photos"), files, np.arange(images) // 1024, classes), [])


def measured(what: str, root: Path, images: int) -> dict[str, float]:
    line = [sys.executable, __file__, "--one", what, "--root", str(root), "--images", str(images)]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def warm(what: str, root: Path) -> None:
    """Import and compile everything first: only what the work itself takes is counted."""
    small = root / f"warm-{what.replace(' ', '-').replace(':', '').replace(',', '')}"
    spool(small, 2048)
    work("seal", small, 2048)
    if not what.startswith("seal"):
        work(what, small, 2048)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--one", default="")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--what", nargs="+", default=KINDS)
    args = parser.parse_args()
    if args.one:
        warm(args.one, args.root)
        before, begun, busy = peak_mb(), time.perf_counter(), time.process_time()
        work(args.one, args.root, args.images[0])
        spent = {"seconds": time.perf_counter() - begun, "cpu_seconds": time.process_time() - busy}
        spent["peak_mb"] = peak_mb() - before
        if args.one.startswith("seal"):
            spent["store_bytes"] = sum(file.stat().st_size for file in (args.root / "x.tok").rglob("*.*"))
        print(json.dumps(spent))
        return
    rows: list[dict[str, object]] = []
    if args.json and args.json.is_file():
        rows = json.loads(args.json.read_text())["rows"]
    done = {(row["images"], row["what"]) for row in rows}
    for images in args.images:
        with TemporaryDirectory() as folder:
            root = Path(folder) / "store"
            for what in args.what:
                if (images, what) in done:
                    continue
                sealed = what.startswith("open") and not (root / "x.tok").exists()
                if what.startswith("seal") or sealed:  # each seals parts of its own, and uses them up
                    shutil.rmtree(root, ignore_errors=True)
                    spool(root, images)
                if sealed:
                    work("seal", root, images)
                root.mkdir(exist_ok=True)
                row = {"images": images, "what": what, **measured(what, root, images)}
                rows.append(row)
                print(f"{images:>12,} {what:<22}{row['cpu_seconds']:10.2f} s CPU {row['peak_mb']:10.1f} MB", flush=True)
                if args.json:
                    args.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
