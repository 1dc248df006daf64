"""Allocator settings: keep memory that a training step frees, since the next step needs it again."""

from __future__ import annotations

import ctypes

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
