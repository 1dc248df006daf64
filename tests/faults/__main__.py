"""Run the fault matrix.

    python -m faults [NAME ...] [--share 1.0] [--seed 0] [--out results/faults.json]

NAME: part of a row's name; all rows without one. --share: of the nightly number of trials. Rows that the file holds
already with as many trials are not run again. Exit code 1 if a trial failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import numpy as np

import faults.damage
import faults.disk
import faults.fuzz
import faults.kills
import faults.shared  # noqa: F401
from faults.matrix import ROWS, Outcome, Row


def run(row: Row, count: int, seed: int) -> Outcome:
    """So many trials of a row."""
    outcome, begun = Outcome(row.name), perf_counter()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        for trouble in row.trials(count, np.random.default_rng((seed, row.number)), Path(folder)):
            outcome.count(trouble)
    outcome.seconds = round(perf_counter() - begun, 1)
    return outcome


def main() -> None:
    """Run rows, print a line each, keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="part of a row's name; default: all rows")
    parser.add_argument("--share", type=float, default=1.0, help="of the nightly number of trials")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a JSON file that keeps what was found")
    options = parser.parse_args()
    chosen = [row for row in ROWS if not options.names or any(name in row.name for name in options.names)]
    if not chosen:
        sys.exit(f"no row of the matrix has a name with {options.names}")
    kept = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    failed = 0
    for row in chosen:
        count = max(1, round(row.full * options.share))
        before = kept.get(row.name)
        if before and before["asked"] >= count and before["passed"] == before["tried"]:
            continue
        found = run(row, count, options.seed)
        failed += found.tried - found.passed
        print(
            f"{row.number:2d}  {row.name:<40} {found.passed:>7,} of {found.tried:>7,}  {found.seconds:8.1f} s",
            flush=True,
        )
        for trouble in found.failures:
            print(f"      {trouble}", flush=True)
        kept[row.name] = {"number": row.number, "asked": count, "seed": options.seed, **asdict(found)}
        if options.out:
            options.out.write_text(json.dumps(kept, indent=1) + "\n")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
