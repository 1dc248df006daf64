"""Random numbers as a function of (seed, epoch, index, purpose): Philox4x32-10 (Salmon et al., 2011).

Numpy arrays and torch tensors on any device get the same bits: products wrap modulo 2^64 in both. Nothing here keeps
state. Dense noise and dropout come from torch's own generator, which the training loop seeds with `step_seed` at every
step; on a host with compiled kernels it seeds core/kernels/dense.py, which is four times as fast, with other numbers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from tilework.core.compiled import kernels

if TYPE_CHECKING:
    from torch import Tensor

Number = TypeVar("Number", int, np.ndarray, "Tensor")
Array = TypeVar("Array", np.ndarray, "Tensor")

_WORD = 0xFFFFFFFF
_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57])[:, None, None]
_WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the keys in each round


def philox(
    counter: tuple[Number, Number, Number, Number], key: tuple[int, int]
) -> tuple[Number, Number, Number, Number]:
    """Ten rounds on four 32-bit words, each a number or an int64 array; returns four words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (p1 >> 32 & _WORD) ^ c1 ^ k0, p1 & _WORD, (p0 >> 32 & _WORD) ^ c3 ^ k1, p0 & _WORD
        k0, k1 = k0 + _WEYL[0] & _WORD, k1 + _WEYL[1] & _WORD
    return c0, c1, c2, c3


def philox_pairs(even: np.ndarray, odd: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The same on words 0 and 2, and 1 and 3, in half as many calls. Each (2, ...) int64; keys: (10, 2, 1, 1).

    Returns (4, ...): words 0, 2, 1, 3.
    """
    for key in keys:
        product = even * _MULTIPLIERS
        even = (product[::-1] >> 32 & _WORD) ^ odd ^ key
        odd = product[::-1] & _WORD
    return np.concatenate([even, odd])


@lru_cache(maxsize=1024)
def purpose_key(seed: int, purpose: str) -> tuple[int, int]:
    """The two key words of a seed and a purpose."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


@lru_cache(maxsize=1024)
def _round_keys(key: tuple[int, int]) -> np.ndarray:
    first, second = ((word + step * np.arange(10)) & _WORD for word, step in zip(key, _WEYL, strict=True))
    return np.stack([first, second], 1)[..., None, None]


def words(seed: int, epoch: int, index: Array, purpose: str, count: int) -> Array:
    """`count` 32-bit words for each sample. index: (B,) int64 array or tensor; returns (B, count) int64."""
    key, blocks = purpose_key(seed, purpose), -(-count // 4)
    if isinstance(index, np.ndarray):
        if fast := kernels("tilework.core.kernels", len(index) * count):
            out = np.empty((len(index), count), np.int64)
            fast.draw(epoch, np.ascontiguousarray(index, np.int64), np.array(key, np.uint64), out)
            return out
        even, odd = np.empty((2, 2, len(index), blocks), np.int64)
        even[0], even[1] = np.arange(blocks), (index >> 32 & _WORD)[:, None]
        odd[0], odd[1] = (index & _WORD)[:, None], epoch & _WORD
        drawn = philox_pairs(even, odd, _round_keys(key))[[0, 2, 1, 3]]  # (4, B, count / 4)
        return np.moveaxis(drawn, 0, -1).reshape(len(index), 4 * blocks)[:, :count]
    import torch  # only when a tensor came in: the store works without torch

    if index.device.type == "cpu":  # numpy has less to do per call, and there are many small ones
        return torch.from_numpy(words(seed, epoch, index.numpy(), purpose, count))
    number, block = index[:, None], torch.arange(blocks, device=index.device)
    zero = number * 0 + block * 0
    counter = (zero + block, zero + (number & _WORD), zero + (number >> 32 & _WORD), zero + (epoch & _WORD))
    return torch.stack(philox(counter, key), -1).reshape(len(index), 4 * blocks)[:, :count]


def permutation(seed: int, epoch: int, count: int, purpose: str) -> np.ndarray:
    """A random order of `count` things, (count,) int64: each exactly once."""
    high, low = words(seed, epoch, np.arange(count, dtype=np.int64), purpose, 2).T
    return np.argsort((high << 31) ^ low, kind="stable")


def uniform(seed: int, epoch: int, index: Array, purpose: str, count: int) -> Array:
    """Uniforms in [0, 1) of 24 bits, exact in float32. Returns (B, count) float32."""
    top = words(seed, epoch, index, purpose, count) >> 8
    return top.astype(np.float32) * np.float32(2**-24) if isinstance(top, np.ndarray) else top.float() * 2**-24


def step_seed(seed: int, step: int, rank: int) -> int:
    """Seed of torch's generator for one training step of one process."""
    low, high, _, _ = philox((0, step & _WORD, step >> 32, rank), purpose_key(seed, "step"))
    return int(low | (high & 0x7FFFFFFF) << 32)


@dataclass(frozen=True)
class Draws:
    """The random numbers of one batch, keyed by each sample's global index."""

    seed: int
    epoch: int
    index: Tensor  # (B,) int64
    step: int = 0  # training steps taken so far
    steps: int = 0  # of the whole run; 0: unknown

    def uniform(self, purpose: str, count: int = 1) -> Tensor:
        """(B, count) float32 in [0, 1)."""
        return uniform(self.seed, self.epoch, self.index, purpose, count)

    def integers(self, purpose: str, high: int, count: int = 1) -> Tensor:
        """(B, count) int64 in [0, high)."""
        return words(self.seed, self.epoch, self.index, purpose, count) * high >> 32 & _WORD
