"""Philox4x32-10 (Salmon et al., 2011), for many samples: core/rng.py has the same with numpy and torch.

B samples
"""

from __future__ import annotations

import numpy as np

from tilework.core.compiled import jit

U64 = np.uint64
WORD = U64(0xFFFFFFFF)
HALF = U64(32)


@jit
def block(c0: int, c1: int, c2: int, c3: int, k0: int, k1: int) -> tuple[int, int, int, int]:
    """Four words of a counter and a key; all words as uint64."""
    for _ in range(10):
        p0, p1 = c0 * U64(0xD2511F53), c2 * U64(0xCD9E8D57)
        c0, c1, c2, c3 = p1 >> HALF ^ c1 ^ k0, p1 & WORD, p0 >> HALF ^ c3 ^ k1, p0 & WORD
        k0, k1 = k0 + U64(0x9E3779B9) & WORD, k1 + U64(0xBB67AE85) & WORD
    return c0, c1, c2, c3


@jit
def draw(epoch: int, index: np.ndarray, key: np.ndarray, out: np.ndarray) -> int:
    """Words of each sample. index: (B,) int64; key: two words, uint64; out: (B, count) int64."""
    count = out.shape[1]
    for i in range(len(index)):
        number = U64(index[i])
        for at in range((count + 3) // 4):
            words = block(U64(at), number & WORD, number >> HALF & WORD, U64(epoch) & WORD, key[0], key[1])
            for k in range(min(4, count - 4 * at)):
                out[i, 4 * at + k] = words[k]
    return -1


def check() -> None:
    """Raise unless a block comes out as published: counter and key of zeros (kat_vectors of Random123)."""
    out = np.empty((1, 4), np.int64)
    draw(0, np.zeros(1, np.int64), np.zeros(2, np.uint64), out)
    if out.tolist() != [[0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]]:
        raise RuntimeError("a compiled kernel gave a wrong result")
