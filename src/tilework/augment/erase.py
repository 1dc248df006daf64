"""Random erasing: a box of noise (Zhong et al., 2020), with DeiT's settings.

B batch | C channels | H, W pixels
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from tilework.augment.augment import Augment, Stateless
from tilework.core.affine import TRIES, first_that, try_boxes
from tilework.core.batch import Batch, Stage
from tilework.core.bounds import check_ranges, check_shares
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws


class Erasure(NamedTuple):
    """Where each sample is erased, and by what."""

    inside: Tensor  # (B, 1, H, W) bool
    noise: Tensor  # (B, C, H, W)


@Augment.choices.add("erase")
@dataclass(frozen=True)
class Erase(Stateless[Erasure]):
    """A box of random area and aspect replaced by standard normal noise; comes after 'normalise'.

    As in timm: a box that does not fit is drawn again up to ten times, then nothing is erased.
    """

    stages: ClassVar[tuple[Stage, ...]] = ("pixels",)
    probability: float = 0.25
    area: tuple[float, float] = (0.02, 1 / 3)
    aspect: tuple[float, float] = (0.3, 1 / 0.3)

    def __post_init__(self) -> None:
        check_shares(self, "probability")
        check_ranges(self)

    def sample(self, draws: Draws, batch: Batch) -> Erasure:
        """Boxes and noise. Samples read one stream of noise, each from a place of its own: their order is free."""
        if not batch.x.is_floating_point():
            raise ConfigError("augmentation 'erase' takes floats but gets bytes", "put it after 'normalise'")
        shape = batch.x.shape[1:]
        u = draws.uniform("erase", 2 + 4 * TRIES)  # (B, ...): whether, area, aspect, top, left, noise, further tries
        rows, columns = (u.new_full((len(u), 1), side) for side in shape[1:])
        tries = torch.cat([u[:, 1:5], u[:, 6:]], 1).unflatten(1, (TRIES, 4))
        tried = try_boxes(tries, rows, columns, self.area, self.aspect)
        fits = (tried.height < rows) & (tried.width < columns)
        top, left, height, width = first_that(fits, tried)
        chosen = (u[:, 0] < self.probability) & fits.any(1)
        inside = (
            chosen[:, None, None]
            & _between(top, height, shape[1])[:, :, None]
            & _between(left, width, shape[2])[:, None]
        )
        count = shape.numel()
        stream = torch.randn(2 * count, dtype=batch.x.dtype, device=batch.x.device)
        noise = stream.unfold(0, count, 1).index_select(0, (u[:, 5] * count).long())
        return Erasure(inside[:, None], noise.view(-1, *shape))

    def apply(self, batch: Batch, p: Erasure) -> Batch:
        """x: (B, C, H, W) floats."""
        return batch.changed(x=torch.where(p.inside, p.noise, batch.x))


def _between(start: Tensor, length: Tensor, side: int) -> Tensor:
    """Which pixels of an axis lie in the box. start, length: (B,); returns (B, side)."""
    at = torch.arange(side, device=start.device)
    return (at >= start[:, None]) & (at < (start + length)[:, None])
