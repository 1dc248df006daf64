"""Noise of ImageNet-C: Gaussian, shot, impulse and speckle.

B batch | H, W pixels
"""

from __future__ import annotations

from functools import lru_cache
from math import exp
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tilework.evaluation.corruptions.kind import Corruption, in_unit
from tilework.evaluation.noise import Noise


def _normal(noise: Noise, x: Tensor, c: Any, scale: float) -> Tensor:
    return noise.normal(*x.shape[1:])


@lru_cache(maxsize=8)
def _alias_tables(c: float) -> tuple[Tensor, Tensor]:
    """Of the Poisson distribution of each byte's light, for one draw per number (Walker, 1977): (256, n) both."""
    count = int(c + 10 * c**0.5) + 12
    own, other = np.ones((256, count)), np.tile(np.arange(count), (256, 1))
    for byte in range(256):
        rate = byte / 255 * c
        p = [exp(-rate)]
        for k in range(1, count):
            p.append(p[-1] * rate / k)
        share = np.array(p) / sum(p) * count
        small, large = list(np.flatnonzero(share < 1)), list(np.flatnonzero(share >= 1))
        while small and large:
            low, high = small.pop(), large[-1]
            own[byte, low], other[byte, low] = share[low], high
            share[high] -= 1 - share[low]
            if share[high] < 1:
                small.append(large.pop())
    return torch.from_numpy(own).float(), torch.from_numpy(other).float()


def _shots(noise: Noise, x: Tensor, c: float, scale: float) -> Tensor:
    """Counts of light, Poisson(x c / 255), like x."""
    own, other = _alias_tables(c)
    place = noise.uniform(*x.shape[1:]).mul_(own.shape[1])
    cell = place.floor()
    entry = (x.int() * own.shape[1]).add_(cell.int()).flatten()
    kept = place.sub_(cell).flatten() < own.flatten().index_select(0, entry)
    return torch.where(kept, cell.flatten(), other.flatten().index_select(0, entry)).view(x.shape)


def _impulse(x: Tensor, share: float, u: Tensor, scale: float) -> Tensor:
    """u: like x, whole numbers below 65,536."""
    least = round(share * 65536)
    return x.masked_fill(u < least, 0).masked_fill_(u < least // 2, 255)


GAUSSIAN = Corruption((0.08, 0.12, 0.18, 0.26, 0.38), lambda x, sd, n, scale: in_unit(x).add_(n, alpha=sd), _normal)
SHOT = Corruption((60, 25, 12, 5, 3), lambda x, c, counts, scale: counts / c, _shots)
IMPULSE = Corruption(
    (0.03, 0.06, 0.09, 0.17, 0.27), _impulse, lambda noise, x, c, scale: noise.small_integers(65536, *x.shape[1:])
)
SPECKLE = Corruption((0.15, 0.2, 0.35, 0.45, 0.6), lambda x, sd, n, scale: in_unit(x).mul_(n.mul_(sd).add_(1)), _normal)
