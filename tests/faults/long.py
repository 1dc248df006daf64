"""Row 14: a million steps of an almost empty model; memory and open files stay flat, the log is bounded."""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median

import numpy as np

from faults.matrix import ROWS, Row, Trials
from faults.processes import launch
from small_data import write_store

STEPS = 1000  # of a trial
LOG_EVERY, LINE = 100, 400  # steps, and bytes that a line of the log may have
GROWTH = 1 << 20  # bytes


def memory(process: int) -> int:
    """Bytes that a process holds for itself alone."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Dirty", "Swap:")))


def long_run(count: int, rng: np.random.Generator, folder: Path) -> Trials:
    """Training for count x 1,000 steps, looked at every second; the first fifth is for caches to fill."""
    steps, out = count * STEPS, folder / "out"
    settings = [
        "fit.epochs=0",
        f"fit.steps={steps}",
        "fit.batch=2",
        f"fit.log_every={LOG_EVERY}",
        "fit.save_every=20000",
    ]
    words = [
        "train",
        "linear_cpu",
        *settings,
        "--data",
        f"{write_store(folder / 'x.tok')}",
        "--out",
        f"{out}",
        "--json",
    ]
    child = launch(words, folder / "log.txt")
    looks: list[tuple[int, int]] = []  # bytes, open files
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        time.sleep(1)
        if (out / "log.jsonl").is_file() and not (out / "log.csv").is_file():
            try:
                looks.append((memory(child), len(os.listdir(f"/proc/{child}/fd"))))
            except OSError:  # it has just ended
                continue
    fifth, log = max(1, len(looks) // 5), out / "log.jsonl"
    troubles = [] if ended[1] == 0 else [f"ends with {ended[1]}: {(folder / 'log.txt').read_text()[-300:]}"]
    if looks:
        early, late = looks[fifth : 2 * fifth] or looks, looks[-fifth:]
        (before, files), (after, later) = ([median(kind) for kind in zip(*part, strict=True)] for part in (early, late))
        print(f"    memory {before / 2**20:.2f} to {after / 2**20:.2f} MiB, files {files:g} to {later:g}", flush=True)
        troubles += [f"memory grew by {after - before:,.0f} B"] if after - before > GROWTH else []
        troubles += [f"open files grew from {files:g} to {later:g}"] if later > files else []
    if log.is_file() and log.stat().st_size > (steps // LOG_EVERY + 2) * LINE:
        troubles.append(f"the log has {log.stat().st_size:,} B")
    for _ in range(count):
        yield "; ".join(troubles) or None


ROWS.append(Row(14, "a million steps, by the thousand", 1000, 0, long_run))
