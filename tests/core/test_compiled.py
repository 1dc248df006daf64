"""Compiled kernels: when they are loaded, and what happens where they cannot be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tilework.core import compiled

MISSING = """
import sys
sys.modules["numba"] = None  # as if it were not installed
from pathlib import Path
import numpy as np
from tilework.core.compiled import in_use
from tilework.store import Store, StoreWriter
ids = np.random.default_rng(0).integers(0, 300, (700, 40, 40))  # more codes than what would load kernels
with StoreWriter(Path(sys.argv[1]), np.zeros((300, 1)), ["a"], codec="rans") as writer:
    writer.add(ids, [0] * 700, [""] * 700)
assert (Store(sys.argv[1]).batch(np.arange(700)) == ids).all()
assert not Store(sys.argv[1]).verify()
print(in_use())
"""


def test_a_store_works_where_numba_does_not_import(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", MISSING, tmp_path / "x.tok"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("numpy (")
    assert "pip install 'tilework[fast]'" in done.stdout


def test_importing_the_library_does_not_import_numba() -> None:
    code = "import sys, tilework, tilework.store, tilework.data; assert 'numba' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_kernels_are_loaded_when_there_is_enough_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_seen", 0)
    monkeypatch.setattr(compiled, "_load", lambda package: (package, ""))
    monkeypatch.delenv("TILEWORK_KERNELS", raising=False)
    assert compiled.kernels("x", compiled.ENOUGH - 1) is None
    assert compiled.kernels("x", 1) is None
    assert compiled.kernels("x", 1) == "x"
    monkeypatch.setenv("TILEWORK_KERNELS", "0")
    assert compiled.kernels("x", 1) is None
    assert compiled.kernels("x") is None
    monkeypatch.setattr(compiled, "_seen", 0)
    monkeypatch.setenv("TILEWORK_KERNELS", "1")
    assert compiled.kernels("x", 1) == "x"


def test_a_kernel_that_computes_wrongly_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEWORK_KERNELS", raising=False)

    class Broken:
        def check(self) -> None:
            raise RuntimeError("a compiled kernel gave a wrong result\nand more")

    compiled._load.cache_clear()
    monkeypatch.setattr(compiled, "import_module", lambda package: Broken())
    assert compiled.kernels("broken") is None
    assert compiled.in_use("broken").startswith("numpy (a compiled kernel gave a wrong result);")
    compiled._load.cache_clear()


def test_without_a_directory_to_keep_them_kernels_are_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    numba = pytest.importorskip("numba")
    real, asked = numba.njit, []

    def njit(cache: bool = False, **options: object) -> object:
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return real(**options)

    def double(x: int) -> int:
        return 2 * x

    with monkeypatch.context() as patch:
        patch.setattr(numba, "njit", njit)
        kernel = compiled.jit(double)
    assert kernel(21) == 42
    assert asked == [True, False]


@pytest.mark.parametrize(("said", "found"), [("3", 3), ("0", None), ("many", None), ("", None)])
def test_threads_are_those_given(monkeypatch: pytest.MonkeyPatch, said: str, found: int | None) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert compiled.threads() == found if found else compiled.threads() >= 1


def test_parts_cover_all_rows_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    rows: list[int] = []

    def work(part: slice) -> int:
        rows.extend(range(part.start, part.stop))
        return part.start if part.start > 5 else -1

    assert compiled.in_parts(work, 10, 2) == 6
    assert sorted(rows) == list(range(10))
    assert compiled.in_parts(lambda part: part.stop, 10, 100) == 10  # too few to share
