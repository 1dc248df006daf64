"""Dense random numbers as a function of (seed, image, purpose): as many as an image has values, fast.

They are drawn on the host, image by image, whatever the device and the batch.
B batch
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tilework.core.rng import Draws


def seeds_of(draws: Draws, purpose: str) -> list[int]:
    """A seed of each image of a batch."""
    words = draws.integers(purpose, 1 << 31, 2)
    return (words[:, 0] << 31 | words[:, 1]).tolist()


class Noise:
    """Dense random numbers of a batch, of each image from a generator of its own."""

    def __init__(self, seeds: list[int], frost: Path | None = None) -> None:
        """frost: folder of textures, for what needs them."""
        self.frost = frost
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def normal(self, *shape: int) -> Tensor:
        """(B, *shape)"""
        return self._fill(shape, torch.float32, lambda row, generator: row.normal_(generator=generator))

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """(B, *shape) in [low, high)"""
        return self._fill(shape, torch.float32, lambda row, generator: row.uniform_(low, high, generator=generator))

    def small_integers(self, high: int, *shape: int) -> Tensor:
        """(B, *shape) in [0, high), from 16 bits each: high is small, or 65,536."""
        words = -(-prod(shape) // 4)
        bits = self._fill(
            (words,), torch.int64, lambda row, generator: row.random_(-(2**63), None, generator=generator)
        )
        halves = bits.view(torch.uint16).to(torch.int64 if high > 1 << 15 else torch.int32)
        return (halves.mul_(high) >> 16)[:, : prod(shape)].view(-1, *shape)

    def _fill(self, shape: tuple[int, ...], kind: torch.dtype, fill: Callable[[Tensor, Any], Tensor]) -> Tensor:
        out = torch.empty(len(self._generators), *shape, dtype=kind)
        for row, generator in zip(out, self._generators, strict=True):
            fill(row, generator)
        return out
