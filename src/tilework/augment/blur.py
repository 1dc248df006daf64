"""Random Gaussian blur (SimCLR; Chen et al., 2020; MoCo v3), as Pillow computes it.

Pillow blurs three times by a box whose ends count in part, along the rows and then along the columns, and rounds to
bytes each time (Gwosdek et al., 2011, eqs. 7, 11 and 14).

B batch | b samples that are blurred | H, W pixels | T weights of a box
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from tilework.augment.augment import Augment, Stateless
from tilework.augment.rand_augment import on_chosen, whole_bytes
from tilework.core.batch import Batch, Stage
from tilework.core.bounds import check_shares
from tilework.core.rng import Draws

PASSES = 3
ONE = 1 << 24  # weights are whole numbers of which this is 1


class Blurring(NamedTuple):
    """What happens to each sample."""

    chosen: Tensor  # (B,) whether
    sigma: Tensor  # (B,) deviation in pixels


@Augment.choices.add("gaussian_blur")
@dataclass(frozen=True)
class GaussianBlur(Stateless[Blurring]):
    """A deviation drawn evenly from `sigma`, in pixels; comes before 'normalise'. The defaults are MoCo v3's."""

    stages: ClassVar[tuple[Stage, ...]] = ("pixels",)
    sigma: tuple[float, float] = (0.1, 2.0)
    probability: float = 0.5

    def __post_init__(self) -> None:
        check_shares(self, "probability")
        if not 0 <= self.sigma[0] <= self.sigma[1] <= 100:
            raise ValueError(f"sigma is {self.sigma} but must be two numbers between 0 and 100, the smaller first")

    def sample(self, draws: Draws, batch: Batch) -> Blurring:
        """Who is blurred, and how far."""
        u, (low, high) = draws.uniform("gaussian_blur", 2), self.sigma
        return Blurring(u[:, 0] < self.probability, low + u[:, 1] * (high - low))

    def apply(self, batch: Batch, p: Blurring) -> Batch:
        """x: (B, 3, H, W) bytes, or floats in [0, 255] that become whole numbers."""
        reach = int(sqrt(12 * self.sigma[1] ** 2 / PASSES + 1) / 2 - 0.5) + 1  # of the widest box, ends included
        x = on_chosen(whole_bytes(batch.x), p.chosen, blurred, boxes(p.sigma, reach))
        return batch.changed(x=x.to(batch.x.dtype))


def boxes(sigma: Tensor, reach: int) -> Tensor:
    """Weights of the box whose three passes blur by sigma, (B, T), T = 2 reach + 1, in double precision."""
    variance = (sigma * sigma / PASSES).double()
    whole = ((torch.sqrt(12 * variance + 1) - 1) / 2).floor()  # radius without its ends
    part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance) / (6 * (variance - (whole + 1) ** 2))
    radius = (whole + part).float().double()  # Pillow keeps it in single precision
    inside = (ONE / (radius * 2 + 1).float()).floor().double()
    end = ((ONE - (2 * radius.floor() + 1) * inside) / 2).floor()
    away = torch.arange(-reach, reach + 1, device=sigma.device).abs()  # (T,)
    last = radius.floor()[:, None]
    zero = torch.zeros_like(inside[:, None])
    return torch.where(away <= last, inside[:, None], torch.where(away == last + 1, end[:, None], zero))


def blurred(x: Tensor, weights: Tensor) -> Tensor:
    """x: (b, 3, H, W) bytes; weights: (b, T). Exact in double precision: all numbers stay below 2^53."""
    full, reach = x.double(), weights.shape[1] // 2
    columns = weights[:, :, None, None, None]
    for _ in range(2):  # rows, then columns as rows
        width = full.shape[3]
        places = torch.arange(-reach, width + reach, device=x.device).clamp(0, width - 1)  # the border is repeated
        for _ in range(PASSES):
            wide = full.index_select(3, places)
            total = torch.full_like(full, ONE // 2)  # what rounds
            for i in range(weights.shape[1]):
                total = total + columns[:, i] * wide[..., i : i + width]
            full = (total / ONE).floor()
        full = full.transpose(2, 3)
    return full.to(torch.uint8)
