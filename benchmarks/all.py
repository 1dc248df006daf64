"""Every benchmark that needs no data of its own, one table: figures now, quartiles, and those stored in results/.

    python benchmarks/all.py [NAME ...] [--store STORE]

Each runs in a process of its own (see its docstring). Ratios within a run count; figures of another machine or a busy
one are only a hint. --store adds the peers of benchmarks/peers.py on that store.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
STORED = HERE.parent / "results"
# script, options, stored figures
BENCHMARKS = {
    "feed": (["feed.py", "--json"], "feed.json"),
    "loop": (["loop.py", "--json"], "loop.json"),
    "million": (["store_million.py", "--images", "100000", "--json"], ""),
    "store": (["store.py", "--json"], "store-imagenette.json"),
}


def figures(tree: Any, name: str = "") -> Iterator[tuple[str, list[float]]]:
    """Numbers of a JSON result by their path; lists are quartiles or single figures."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from figures(value, f"{name} {key}".strip())
    elif isinstance(tree, list) and all(isinstance(value, int | float) for value in tree):
        yield name, tree
    elif isinstance(tree, int | float) and not isinstance(tree, bool):
        yield name, [tree]


def middle(values: list[float]) -> float:
    """The median of quartiles, or the figure itself."""
    return values[len(values) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(BENCHMARKS)}; all if none are named")
    parser.add_argument("--store", type=Path)
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in BENCHMARKS]:
        parser.error(f"no benchmark '{unknown[0]}': there are {', '.join(BENCHMARKS)}")
    chosen = {name: BENCHMARKS[name] for name in options.names or BENCHMARKS}
    if options.store:
        chosen["peers"] = ["peers.py", str(options.store), "--peers", "--json"], "peers-imagenette.json"
    print(f"{'figure':<72}{'now':>14}{'quartiles':>26}{'stored':>14}{'now/stored':>12}")
    for name, (command, file) in chosen.items():
        done = subprocess.run([sys.executable, HERE / command[0], *command[1:]], capture_output=True, text=True)
        if done.returncode:
            print(f"{name} failed: {done.stderr.strip().splitlines()[-1:]}")
            continue
        stored = dict(figures(json.loads((STORED / file).read_text()))) if file else {}
        for figure, values in figures(json.loads(done.stdout)):
            spread = f"{values[0]:,.4g} to {values[-1]:,.4g}" if len(values) == 3 else ""
            before = middle(stored[figure]) if figure in stored else None
            told = f"{before:>14,.4g}{middle(values) / before:>12.3f}" if before else ""
            print(f"{f'{name}: {figure}':<72}{middle(values):>14,.4g}{spread:>26}{told}", flush=True)


if __name__ == "__main__":
    main()
