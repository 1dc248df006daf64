"""Compiled kernels, where numba is installed (extra `fast`); what they compute, numpy or torch computes too.

TILEWORK_KERNELS=0 turns them off, 1 loads them at the first call. Otherwise those of the store, whose results are the
same to the last bit, are loaded once a process has enough to do: loading takes half a second, and compiling some
seconds, once for each machine and version. Compiled code lies beside its source, or in the user's cache where that is
not writable (numba's NUMBA_CACHE_DIR comes first); where neither is, it is compiled in every process.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

ENOUGH = 1 << 20  # codes that a process handles before kernels are loaded
_seen = 0


def jit(function: F, fastmath: bool | set[str] = False) -> F:
    """Compile a function when it is first called; it then releases the interpreter while it runs."""
    from numba import njit

    # numba looks only at the file of a function for changes, and files of a wheel all have one date: the name tells
    function.__qualname__ += "_" + _digest(Path(function.__code__.co_filename).parent)
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # no directory to keep it in
        return njit(**options)(function)


def jit_any_order(function: F) -> F:
    """The same with sums in any order: for whole numbers below 2^24 in floats, which are exact, and for learning."""
    return jit(function, {"reassoc", "contract", "nsz"})


@lru_cache
def _digest(folder: Path) -> str:
    """Of all sources of a folder of kernels, and of whether bounds are checked."""
    digest = hashlib.sha256(os.environ.get("NUMBA_BOUNDSCHECK", "").encode())
    for file in sorted(folder.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def kernels(package: str, work: int | None = None) -> Any:
    """A package of kernels, or None. work: codes of this call, which count until there is enough; None: load now."""
    global _seen
    wanted = os.environ.get("TILEWORK_KERNELS", "")
    if wanted == "0":
        return None
    if work is not None and wanted != "1" and _seen < ENOUGH:
        _seen += work
        return None
    return _load(package)[0]


@lru_cache
def _load(package: str) -> tuple[Any, str]:
    """The package, or None and the reason."""
    try:
        module = import_module(package)
        module.check()
        return module, ""
    except Exception as error:  # whatever a numba that does not fit this machine may raise: numpy still works
        return None, str(error).strip().split("\n")[0] or type(error).__name__


def in_use(package: str = "tilework.store.kernels") -> str:
    """Whether kernels are used, and with what, for people."""
    if os.environ.get("TILEWORK_KERNELS") == "0":
        return "numpy (TILEWORK_KERNELS=0)"
    module, reason = _load(package)
    if module is None:
        return f"numpy ({reason}); pip install 'tilework[fast]' for compiled kernels"
    return f"numba {module.version}, {threads()} threads"


def threads() -> int:
    """Threads for kernels: OMP_NUM_THREADS if it is a number, else the cores this process may use."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    if said.isdigit() and int(said):
        return int(said)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@lru_cache
def _pool(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "kernels")


def in_parts(call: Callable[[slice], int], count: int, least: int) -> int:
    """Run a kernel over parts of its rows, one for each thread; returns the largest result.

    least: rows that are worth a thread.
    """
    parts = count // max(1, least)
    if parts < 2 or (parts := min(threads(), parts)) < 2:
        return call(slice(0, count))
    edges = [count * part // parts for part in range(parts + 1)]
    return max(_pool(parts).map(call, map(slice, edges, edges[1:])))
