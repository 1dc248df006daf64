"""Whether two classifiers differ on the same images by more than chance (McNemar, 1947).

N images
"""

from __future__ import annotations

from math import comb

import numpy as np


def mcnemar(a: np.ndarray, b: np.ndarray) -> float:
    """Exact p of the difference between two sets of answers to the same images (McNemar, 1947). a, b: (N,) bool."""
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    total, least = only_a + only_b, min(only_a, only_b)
    return min(1.0, 2 * sum(comb(total, k) for k in range(least + 1)) / 2**total) if total else 1.0
