"""Run the fault matrix.

    python -m faults [NAME ...] [--share 1.0] [--seconds S] [--seed 0] [--out FILE] [--page docs/faults.md]

NAME: part of a row's name; all rows without one. --share: of the nightly number of trials. --seconds: of each row, in
which it makes as many trials as it can, in place of a number. Trials add up over several calls with one file: a row
goes on with another seed until it has as many trials, or seconds, as are asked for. A row with failures, and one that
tries every place there is, begins anew. Exit code 1 if a trial failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import faults.damage
import faults.disk
import faults.fuzz
import faults.kills
import faults.long
import faults.ranks
import faults.remote
import faults.shared
import faults.tested  # noqa: F401
from faults.matrix import ROWS, Outcome, Row
from tilework.core.files import locked
from tilework.report.marked import write_between

BEGIN, END = "<!-- counts -->", "<!-- end -->"
EVERY = 1_000_000  # trials: all that there are


def run(row: Row, count: int, seed: int, seconds: float = inf) -> Outcome:
    """So many trials of a row, or as many as it makes in so many seconds.

    Seconds are of the clock; where coverage chooses the trials, they are of the processor, as it ends by itself.
    """
    outcome, begun = Outcome(row.name), perf_counter()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        if row.guided is not None and seconds < inf:
            for trouble in row.guided(seconds, seed, Path(folder)):
                outcome.count(trouble)
            outcome.seconds = round(seconds, 1)
            return outcome
        for trouble in row.trials(count, np.random.default_rng((seed, row.number)), Path(folder)):
            outcome.count(trouble)
            if perf_counter() - begun > seconds:
                break
    outcome.seconds = round(perf_counter() - begun, 1)
    return outcome


def read(file: Path | None) -> dict[str, Any]:
    """What a file keeps of earlier calls."""
    return dict(json.loads(file.read_text())) if file and file.exists() else {}


def counted(row: Row, kept: dict[str, Any] | None) -> Outcome:
    """What a file holds of a row and more trials can be added to."""
    counts = row.full < EVERY or row.seconds  # otherwise every place there is
    if kept is None or kept["passed"] < kept["tried"] or (not counts and not kept.get("whole")):
        return Outcome(row.name)
    whole, seeds = kept.get("whole", False), kept.get("seeds", 1)
    return Outcome(row.name, kept["tried"], kept["passed"], kept["seconds"], [], seeds, whole)


def table(kept: dict[str, Any]) -> str:
    """Counts as markdown, rows in the order of their numbers."""
    lines = ["| row | fault | tried | passed | asked | minutes |", "|---|---|---|---|---|---|"]
    rows = {row.name: row for row in ROWS}
    for name, one in sorted(kept.items(), key=lambda item: (item[1]["number"], item[0])):
        if name not in rows:  # of an earlier version
            continue
        row = rows[name]
        whole = f"{row.seconds / 60:.0f} min" if row.seconds else "all" if row.full >= EVERY else f"{row.full:,}"
        lines.append(
            f"| {one['number']} | {name} | {one['tried']:,} | {one['passed']:,} | {whole} | {one['seconds'] / 60:.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run rows, print a line each, keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="part of a row's name; default: all rows")
    parser.add_argument("--share", type=float, default=1.0, help="of the nightly number of trials")
    parser.add_argument("--seconds", type=float, help="of each row, in place of a number of trials")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a JSON file that keeps what was found")
    parser.add_argument("--page", type=Path, help="a page whose table of counts is written from it")
    options = parser.parse_args()
    chosen = [row for row in ROWS if not options.names or any(name in row.name for name in options.names)]
    if not chosen:
        sys.exit(f"no row of the matrix has a name with {options.names}")
    kept = read(options.out)
    failed = 0
    for row in chosen:
        before = counted(row, kept.get(row.name))
        limit = options.seconds or row.seconds * options.share
        wanted = row.full if limit else max(1, round(row.full * options.share))
        count = wanted - before.tried
        seconds = limit - before.seconds if limit else inf
        if count <= 0 or seconds <= 0 or before.whole:
            continue
        found = run(row, count, options.seed + before.seeds, seconds)
        found.whole = row.full >= EVERY and not limit and options.share == 1
        failed += found.tried - found.passed
        print(
            f"{row.number:2d}  {row.name:<40} {found.passed:>7,} of {found.tried:>7,}  {found.seconds:8.1f} s",
            flush=True,
        )
        for trouble in dict.fromkeys(found.failures):
            print(f"      {trouble}", flush=True)
        kept[row.name] = {"number": row.number, "seed": options.seed, **asdict(before.plus(found))}
        if options.out:
            with locked(options.out.parent, wait=True):  # other calls may have other rows of it
                kept = {**read(options.out), row.name: kept[row.name]}
                options.out.write_text(json.dumps(kept, indent=1) + "\n")
    if options.page:
        write_between(options.page, BEGIN, END, table(kept))
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
