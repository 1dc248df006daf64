"""Memory: keep what a training step frees, since the next step needs it again; take none for senseless networks."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # names of glibc's mallopt
LARGEST_BLOCK = 1 << 25  # 32 MiB, the most that glibc takes
KEPT = 1 << 30


def keep_freed_memory() -> bool:
    """Make glibc keep up to 1 GiB of freed blocks; False with another C library.

    Otherwise large tensors cost a page fault per 4 kB in every step.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGEST_BLOCK)) and bool(mallopt(TRIM_THRESHOLD, KEPT))


@contextmanager
def without_memory(most: int) -> Iterator[None]:
    """Networks that are built inside have shapes only; one of more than so many numbers is stopped by ValueError."""
    owner, count = get_ident(), 0

    def add(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal count
        if get_ident() == owner and parameter is not None:
            count += parameter.numel()
            if count > most:
                raise ValueError(f"a network of more than {most:,} numbers is asked for")

    hook = register_module_parameter_registration_hook(add)
    try:
        with torch.device("meta"):
            yield
    finally:
        hook.remove()
