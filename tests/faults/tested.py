"""Rows 8 and 10: hostile files and data that do not fit, as tests of their own; a trial is a test."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from faults.matrix import ROWS, Row, Trials

TESTS = Path(__file__).parents[1]
ALL = 1_000_000
HOSTILE = (
    "core/test_bounds.py", "core/test_config.py", "core/test_hub.py", "core/test_location.py",
    "data/test_hostile_files.py", "data/test_npy_files.py", "data/test_objects.py", "data/test_seit_files.py",
    "data/test_token_files.py", "models/test_weights.py", "store/test_manifest.py",
    "store/test_remote.py", "tokenizers/test_foreign.py",
)  # fmt: skip
UNFIT = (
    "cli/test_careless.py", "experiments/test_converged.py", "experiments/test_table.py", "runs/test_directory.py",
    "runs/test_trained.py",
)  # fmt: skip


def tests(paths: tuple[str, ...], count: int, rng: np.random.Generator, folder: Path) -> Trials:
    """Every test of some files, in one process."""
    found, place = [str(TESTS / path) for path in paths], folder / "junit.xml"
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", str(folder / "tmp")]
    own = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([*words, f"--junitxml={place}", *found], env=own, capture_output=True, text=True)
    if not place.exists():
        raise RuntimeError(f"pytest ends with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
    for case in list(ElementTree.parse(place).iter("testcase"))[:count]:
        if case.find("skipped") is not None:
            continue
        wrong = case.find("failure") if case.find("failure") is not None else case.find("error")
        yield None if wrong is None else f"{case.get('classname')}::{case.get('name')}: {wrong.get('message')}"


ROWS.append(Row(8, "hostile files, archives, pickles, URLs", ALL, 0, partial(tests, HOSTILE)))
ROWS.append(Row(10, "data that do not fit a run or a table", ALL, 0, partial(tests, UNFIT)))
