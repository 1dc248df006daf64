"""How far a reader must go: functions, files and rooms that `tilework train` enters before the first step.

`python benchmarks/walk.py` prints one JSON object; `--list` prints the rooms and functions in their order. Imports are
left out, as are comprehensions. A change of room is counted whenever a call enters another room than the call before.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import numpy as np

import tilework
from tilework.cli.main import main as run_command
from tilework.store import StoreWriter

BASE = f"{Path(tilework.__file__).parent}/"


def write_store(path: Path, count: int) -> Path:
    rng = np.random.default_rng(count)
    codebook = np.random.default_rng(7).normal(size=(32, 8)).astype(np.float32)
    with StoreWriter(path, codebook, ["a", "b", "c"]) as writer:
        writer.add(rng.integers(0, 32, (count, 16, 16)), np.arange(count) % 3, [str(i) for i in range(count)])
    return path


class Trace:
    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []  # file below the package, function
        self.over = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if event != "call" or self.over or not file.startswith(BASE) or name.startswith("<"):
            return
        inside: FrameType | None = frame
        while inside is not None:
            if inside.f_code.co_name == "<module>" and inside.f_code.co_filename.startswith(BASE):
                return  # while a module is imported
            inside = inside.f_back
        self.over = name == "_step"
        if not self.over:
            self.calls.append((file.removeprefix(BASE), frame.f_code.co_qualname))

    @property
    def rooms(self) -> list[str]:
        return [file.partition("/")[0] for file, _ in self.calls]

    def summary(self) -> dict[str, int]:
        rooms = self.rooms
        above = [room for room in rooms if room != "core"]
        return {
            "functions": len(set(self.calls)),
            "files": len({file for file, _ in self.calls}),
            "rooms": len(set(rooms)),
            "changes_of_room": sum(a != b for a, b in pairwise(rooms)),
            "changes_without_core": sum(a != b for a, b in pairwise(above)),
            "calls": len(self.calls),
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    trace = Trace()
    with TemporaryDirectory() as folder:
        root = Path(folder)
        train, val = write_store(root / "train.tok", 96), write_store(root / "val.tok", 48)
        words = ["train", "seit_cpu", "fit.steps=1", "fit.batch=32", "--data", str(train), "--val", str(val)]
        sys.setprofile(trace)
        try:
            run_command([*words, "--out", str(root / "run"), "--json"])
        except SystemExit as end:
            if end.code:
                raise RuntimeError("the run failed") from end
        finally:
            sys.setprofile(None)
    if arguments.list:
        for room, (file, name) in zip(trace.rooms, trace.calls, strict=True):
            print(f"{room:12} {file:32} {name}")
    print(json.dumps(trace.summary()))


if __name__ == "__main__":
    main()
