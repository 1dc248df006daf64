"""Maps mixed with their partners in one pass.

B batch | P positions | C channels
"""

from __future__ import annotations

import numpy as np

from tilework.core.compiled import jit


@jit
def mix(x: np.ndarray, own: np.ndarray, partner: np.ndarray, out: np.ndarray, every: np.ndarray) -> int:
    """Each sample with its partner. x, out: (B, P, C); own: (B, P) share of the sample; every: all of x."""
    count, places, channels = x.shape
    half, one = np.float32(0.5), np.float32(1)
    for i in range(count):
        first, second, mixed = every[partner[i]], x[i], out[i]
        for p in range(places):
            share = own[i, p]
            if share == 1:
                for k in range(channels):
                    mixed[p, k] = second[p, k]
            elif share == 0:
                for k in range(channels):
                    mixed[p, k] = first[p, k]
            else:
                for k in range(channels):
                    a, b = first[p, k], second[p, k]
                    mixed[p, k] = a + share * (b - a) if share < half else b - (b - a) * (one - share)
    return -1
