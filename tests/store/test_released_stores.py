"""Stores written by earlier versions read as they did then.

`released/v1` was written by the last commit whose stores have version 1, with the codes that `codes` makes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tilework.store import Store

RELEASED = Path(__file__).parent / "released"


def codes(name: str) -> np.ndarray:
    """What was written, (B, ...)."""
    rng = np.random.default_rng(0)
    if name == "rans-stack":
        return np.minimum(rng.geometric(0.5, (10, 4, 3, 6)) - 1, 8)
    ids = np.cumsum(rng.integers(0, 2, (40, 6, 5)), 2) * 3 % 23
    if name == "mix-blocks":
        ids[1::2] = ids[::2]
    return ids


@pytest.mark.parametrize("kernels", ["0", "1"])
@pytest.mark.parametrize("path", sorted(RELEASED.glob("v1/*.tok")), ids=lambda path: path.stem)
def test_codes_are_those_that_were_written(monkeypatch: pytest.MonkeyPatch, path: Path, kernels: str) -> None:
    monkeypatch.setenv("TILEWORK_KERNELS", kernels)
    store, ids = Store(path), codes(path.stem)
    np.testing.assert_array_equal(store.used[store.batch(np.arange(len(ids)))], ids)
    some = np.random.default_rng(1).permutation(len(ids))[:7]
    np.testing.assert_array_equal(store.used[store.batch(some)], ids[some])
    assert store.verify(deep=True) == []


@pytest.mark.parametrize("path", sorted(RELEASED.glob("v1/[!r]*.tok")), ids=lambda path: path.stem)
def test_columns_are_read_and_can_be_added(tmp_path: Path, path: Path) -> None:
    store = Store(shutil.copytree(path, tmp_path / "x.tok"))
    assert list(store.column("note")) == [b"x" * i for i in range(40)]
    store.add_column("more", [b"y" * i for i in range(40)])
    again = Store(tmp_path / "x.tok")
    assert list(again.column("more")) == [b"y" * i for i in range(40)]
    np.testing.assert_array_equal(again.used[again.batch(np.arange(40))], codes(path.stem))
    assert again.verify(deep=True) == []


def test_every_version_is_there() -> None:
    assert {path.stem for path in RELEASED.glob("v1/*.tok")} == {
        *("packed", "rans", "rans-context", "rans-stack", "pairwise", "mix", "mix-blocks")
    }
