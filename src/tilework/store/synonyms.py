"""The nearest codes of each code: what SeiT's synonym replacement picks from.

K codes | C code dim
"""

from __future__ import annotations

import numpy as np


def nearest_codes(codebook: np.ndarray, count: int = 5) -> np.ndarray:
    """Other codes by falling cosine of their vectors, the lower number first among equals.

    codebook: (K, C); returns (K, count) int32, fewer where there are not so many codes.
    """
    unit = codebook / np.maximum(np.linalg.norm(codebook, axis=1, keepdims=True), 1e-12)
    count = min(count, len(unit) - 1)
    found = np.empty((len(unit), count), np.int32)
    for start in range(0, len(unit), 1024):  # a large vocabulary has no room for all pairs at once
        near = unit[start : start + 1024] @ unit.T
        near[np.arange(len(near)), start + np.arange(len(near))] = -np.inf
        found[start : start + 1024] = np.argsort(-near, axis=1, kind="stable")[:, :count]
    return found
