"""What shuffling a store costs in bytes: the codes of a store sealed in their order and shuffled, by codec.

python benchmarks/shuffled_store.py --store STORE [--codecs rans rans-context] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tilework.store import Plan, Spool, Store, seal, spool_of

PART = 1024  # images
NAMES = ("in order", "shuffled")


def sealed(source: Store, path: Path, codec: str, shuffle: bool) -> dict[str, int]:
    """Bytes of the shards and of everything."""
    plan = Plan(len(source.codebook.vectors), source.grid, source.classes, parts=-(-len(source) // PART))
    spool = Spool.create(spool_of(path), plan, source.codebook.vectors)
    labels, keys = np.asarray(source.column("label")), list(source.column("key"))
    for number in range(plan.parts):
        index = np.arange(number * PART, min((number + 1) * PART, len(source)))
        columns = {"label": labels[index], "key": [keys[i] for i in index.tolist()]}
        spool.put(number, source.batch(index), columns)
    seal(spool, path, codec, shuffle=shuffle)
    files = Store(path).manifest.files
    shards = sum(file.bytes for name, file in files.items() if name.startswith("shards/"))
    return {"shards": shards, "store": sum(file.bytes for file in files.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--codecs", nargs="+", default=["rans", "rans-context"])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    source = Store(args.store)
    found: dict[str, object] = {"images": len(source)}
    for codec in args.codecs:
        with TemporaryDirectory() as folder:
            each = {name: sealed(source, Path(folder) / f"{name}.tok", codec, name == "shuffled") for name in NAMES}
        found[codec] = each
        kept, shuffled = (each[name]["shards"] for name in NAMES)
        print(f"{codec:<14}{kept:>12,} B in order {shuffled:>12,} B shuffled {shuffled / kept - 1:>+9.4%}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
