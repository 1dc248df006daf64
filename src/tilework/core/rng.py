"""Random numbers as a function of (seed, epoch, index, purpose): Philox4x32-10 (Salmon et al., 2011).

One implementation serves numpy arrays and torch tensors on any device: products wrap modulo 2^64 in both, so bits
and uniforms are equal everywhere. Nothing here keeps state. Dense noise and dropout come from torch's own generator,
which the training loop seeds with `step_seed` at every step.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

_WORD = 0xFFFFFFFF


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    """Ten rounds on four arrays of 32-bit words held in int64; returns four such arrays."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (p1 >> 32 & _WORD) ^ c1 ^ k0, p1 & _WORD, (p0 >> 32 & _WORD) ^ c3 ^ k1, p0 & _WORD
        k0, k1 = k0 + 0x9E3779B9 & _WORD, k1 + 0xBB67AE85 & _WORD
    return c0, c1, c2, c3


@lru_cache(maxsize=1024)
def purpose_key(seed: int, purpose: str) -> tuple[int, int]:
    """The two key words of a seed and a purpose."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def words(seed: int, epoch: int, index: Any, purpose: str, count: int) -> Any:
    """`count` 32-bit words for each sample. index: (B,) int64 array or tensor; returns (B, count) int64."""
    if not isinstance(index, np.ndarray):
        import torch  # only when a tensor came in: the store works without torch

        if index.device.type == "cpu":  # numpy has less to do per call, and there are many small ones
            return torch.from_numpy(words(seed, epoch, index.numpy(), purpose, count))
        block, stack = torch.arange(-(-count // 4), device=index.device), torch.stack
    else:
        block, stack = np.arange(-(-count // 4)), np.stack  # type: ignore[assignment]
    number = index[:, None]
    zero = number * 0 + block * 0
    counter = (zero + block, zero + (number & _WORD), zero + (number >> 32 & _WORD), zero + (epoch & _WORD))
    blocks = stack(philox(counter, purpose_key(seed, purpose)), -1)  # (B, count / 4, 4)
    return blocks.reshape(len(index), 4 * len(block))[:, :count]


def uniform(seed: int, epoch: int, index: Any, purpose: str, count: int) -> Any:
    """Uniforms in [0, 1) of 24 bits, exact in float32. Returns (B, count) float32."""
    top = words(seed, epoch, index, purpose, count) >> 8
    return top.astype(np.float32) * np.float32(2**-24) if isinstance(top, np.ndarray) else top.float() * 2**-24


def step_seed(seed: int, step: int, rank: int) -> int:
    """Seed of torch's generator for one training step of one process."""
    low, high = words(seed, rank, np.array([step]), "step", 2)[0].tolist()
    return int(low | (high & 0x7FFFFFFF) << 32)


@dataclass(frozen=True)
class Draws:
    """The random numbers of one batch, keyed by each sample's global index."""

    seed: int
    epoch: int
    index: Any  # (B,) int64 array or tensor
    step: int = 0  # training steps taken so far

    def uniform(self, purpose: str, count: int = 1) -> Any:
        """(B, count) float32 in [0, 1)."""
        return uniform(self.seed, self.epoch, self.index, purpose, count)

    def integers(self, purpose: str, high: int, count: int = 1) -> Any:
        """(B, count) int64 in [0, high)."""
        return words(self.seed, self.epoch, self.index, purpose, count) * high >> 32 & _WORD
