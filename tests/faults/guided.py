"""Senseless files chosen by coverage: atheris changes the bytes that choices are read from, and keeps what is new.

    python -m faults.guided PARSER [--seconds 60] [--seed 0] [--blind] [--folder DIR]

Needs atheris (`pip install 'tilework[fuzz]'`). --blind draws files at random instead, for comparison; both print how
many branches of the source they reached. Lines on the standard output are JSON: passed, troubles, done.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["tilework"]):
    from faults.fuzz import Choices, Trial
    from faults.parsers import PARSERS

LONGEST = 2048  # bytes that choices are read from
FIRST = 400  # inputs to begin with
EACH = 5.0  # seconds between reports


def main() -> None:
    """Try files until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="PARSER")
    parser.add_argument("--seconds", type=float, default=60.0, help="of processor time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--blind", action="store_true", help="draw at random, whatever is reached")
    parser.add_argument("--folder", type=Path, help="where the files lie; default: a temporary one")
    options = parser.parse_args()
    reports = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what parsers and commands print
    folder = options.folder or Path(tempfile.mkdtemp(prefix="guided-"))
    chosen = next(one for one in PARSERS if one.name == options.name)
    corpus = folder / "corpus"
    corpus.mkdir()
    for number in range(FIRST):
        (corpus / f"{number:04d}").write_bytes(random.Random(f"{options.seed}/{number}").randbytes(LONGEST // 8))
    (folder / "files").mkdir()
    trial, source = Trial(chosen, folder / "files"), random.Random(options.seed)
    told = {"passed": 0, "troubles": []}
    begun = reported = time.process_time()

    def report(done: bool) -> None:
        print(json.dumps({**told, "done": done}), file=reports, flush=True)
        told["passed"], told["troubles"] = 0, []

    def one(data: bytes) -> None:
        nonlocal reported
        data = source.randbytes(LONGEST // 8) if options.blind else data
        trouble = trial(Choices(data))
        if trouble:
            told["troubles"].append(f"{chosen.name}, choices {data.hex()[:4096]}: {trouble}")
            trial.restore()
        else:
            told["passed"] += 1
        now = time.process_time()
        if now - reported > EACH:
            report(done=False)
            reported = now
        if now - begun > options.seconds:
            report(done=True)
            os._exit(0)

    flags = [f"-max_len={LONGEST}", "-rss_limit_mb=0", "-timeout=120", f"-seed={options.seed + 1}", "-len_control=0"]
    atheris.Setup([sys.argv[0], *flags, "-print_final_stats=1", f"-artifact_prefix={folder}/", str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
