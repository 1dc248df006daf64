"""Memory that a step frees is needed again by the next one: keep it instead of giving it back."""

from __future__ import annotations

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # names of glibc's mallopt
LARGEST_BLOCK = 1 << 25  # 32 MiB, the most that glibc takes
KEPT = 1 << 30


def keep_freed_memory() -> bool:
    """Tell glibc to hold on to freed blocks, up to 1 GiB in all; False where the C library is another.

    Otherwise large tensors cost a page fault per 4 kB, each step anew.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGEST_BLOCK)) and bool(mallopt(TRIM_THRESHOLD, KEPT))
