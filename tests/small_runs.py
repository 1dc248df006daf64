"""Small training runs as processes of their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

SETTINGS = "fit.batch=12 fit.epochs=0 fit.log_every=1 model.width=16 model.heads=2 model.depth=1 augment.1.size=[8,8]"


def command(store: Path, out: Path, steps: int, *more: str) -> list[str]:
    settings = [*SETTINGS.split(), f"fit.steps={steps}", *more]
    return ["-m", "tilework", "train", "demo_token", *settings, "--data", str(store), "--out", str(out)]


def wait_for(happened: Callable[[], bool], seconds: float = 90) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.1)


def begun(out: Path) -> bool:
    log = out / "log.jsonl"
    return log.is_file() and len(log.read_text().splitlines()) > 3


def children_of(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(stat.parent.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
