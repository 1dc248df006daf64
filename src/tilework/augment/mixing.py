"""Two samples in one: CutMix (Yun et al., 2019), mixup (Zhang et al., 2018), and the choice between them (DeiT).

Every sample has a mixture of its own, with its neighbour; or, as in timm, the batch has one, with itself in reverse.

B batch | H, W grid
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from tilework.augment.augment import Augment, Stateless
from tilework.augment.compiled import kernels_for_maps, over_samples
from tilework.core.batch import Batch, Mix
from tilework.core.bounds import check_positive, check_shares
from tilework.core.rng import Draws

TRIES = 16


@dataclass(frozen=True)
class Mixing(Stateless[Mix]):
    """Mixes each sample with another one of the batch; subclasses say how much of it stays where."""

    per: Literal["sample", "batch"] = field(default="sample", kw_only=True)  # has one draw

    def own(self, draws: Draws, grid: tuple[int, int]) -> Tensor:
        """Share of the sample itself at each position, (B, H, W)."""
        raise NotImplementedError

    def sample(self, draws: Draws, batch: Batch) -> Mix:
        """Partners, and own share on the input grid."""
        grid, count = (batch.x.shape[-2], batch.x.shape[-1]), len(batch.x)
        order = torch.arange(count, device=batch.x.device)
        if self.per == "sample":
            return Mix(order.roll(1), self.own(draws, grid))
        own = self.own(replace(draws, index=torch.tensor([draws.step])), grid)  # drawn on the host, from the step alone
        return Mix(order.flip(0), own.to(order.device, non_blocking=True).expand(count, -1, -1))

    def apply(self, batch: Batch, p: Mix) -> Batch:
        """x: (B, C, H, W); labels, by share, and columns follow."""
        columns = {name: column.mix(p) for name, column in batch.columns.items()}
        target = batch.target.mix(p.partner, p.own.mean((1, 2)))
        return batch.changed(x=mix_maps(batch.x, p), target=target, columns=columns, mix=p)


def mix_maps(x: Tensor, p: Mix) -> Tensor:
    """Maps mixed with their partners: `Mix.apply`, in one pass where kernels can. x: (B, C, H, W)."""
    y = x.permute(0, 2, 3, 1)
    if not y.is_contiguous() or not (fast := kernels_for_maps(x, p.own)):
        return p.apply(x)
    out = torch.empty_like(y)
    own = p.at(x.shape[2], x.shape[3])
    over_samples(fast.mix, (y.flatten(1, 2), own.flatten(1), p.partner, out.flatten(1, 2)), y.flatten(1, 2))
    return out.permute(0, 3, 1, 2)


@Augment.choices.add("cutmix")
@dataclass(frozen=True)
class CutMix(Mixing):
    """A box of the neighbour, its area before clipping from Beta(alpha, alpha)."""

    probability: float = 1.0
    alpha: float = 1.0

    def __post_init__(self) -> None:
        check_shares(self, "probability")
        check_positive(self, "alpha")

    def own(self, draws: Draws, grid: tuple[int, int]) -> Tensor:
        """One outside the box, zero inside."""
        u = draws.uniform("cutmix", 4)  # (B, 4): whether, area, centre
        area = u[:, 1] if self.alpha == 1 else sample_beta(draws, "cutmix", self.alpha)
        side = area.sqrt() * (u[:, 0] < self.probability)
        rows, columns = (_inside(u[:, 2 + i], side, length) for i, length in enumerate(grid))
        return 1 - (rows[:, :, None] * columns[:, None, :])


@Augment.choices.add("mixup")
@dataclass(frozen=True)
class Mixup(Mixing):
    """The neighbour shines through everywhere, with a share from Beta(alpha, alpha)."""

    probability: float = 1.0
    alpha: float = 0.8

    def __post_init__(self) -> None:
        check_shares(self, "probability")
        check_positive(self, "alpha")

    def needs_grid(self) -> bool:
        """Whole samples are mixed."""
        return False

    def own(self, draws: Draws, grid: tuple[int, int]) -> Tensor:
        """The same share at every position."""
        mixed = draws.uniform("mixup")[:, 0] < self.probability
        share = torch.where(mixed, sample_beta(draws, "mixup", self.alpha), 1.0)
        return share[:, None, None].expand(-1, *grid)


@Augment.choices.add("cutmix_or_mixup")
@dataclass(frozen=True)
class CutMixOrMixup(Mixing):
    """One of the two for each sample, or for the whole batch (DeiT)."""

    cutmix: CutMix = field(default_factory=CutMix)
    mixup: Mixup = field(default_factory=Mixup)
    switch: float = 0.5  # probability of CutMix

    def __post_init__(self) -> None:
        check_shares(self, "switch")
        if (self.cutmix.per, self.mixup.per) != ("sample", "sample"):
            raise ValueError("the choice is drawn with what is chosen: set per of cutmix_or_mixup, not of its parts")

    def own(self, draws: Draws, grid: tuple[int, int]) -> Tensor:
        """The chosen one's."""
        cut = draws.uniform("cutmix_or_mixup")[:, :, None] < self.switch
        return torch.where(cut, self.cutmix.own(draws, grid), self.mixup.own(draws, grid))


def sample_beta(draws: Draws, purpose: str, alpha: float) -> Tensor:
    """Beta(alpha, alpha) by rejection, the first of several tries that is accepted. Returns (B,).

    Below 1 by Jöhnk's two powers; above, from uniform proposals under the density's peak at one half.
    """
    if alpha == 1:
        return draws.uniform(f"{purpose} share")[:, 0]
    u, v = draws.uniform(f"{purpose} share", 2 * TRIES).clamp(min=2**-25).chunk(2, 1)  # (B, TRIES) each
    if alpha < 1:
        x, y = u ** (1 / alpha), v ** (1 / alpha)
        share, accepted = x / (x + y), x + y <= 1
    else:
        share, accepted = u, v <= (4 * u * (1 - u)) ** (alpha - 1)
    return share.gather(1, accepted.float().argmax(1, keepdim=True))[:, 0]


def _inside(centre: Tensor, side: Tensor, length: int) -> Tensor:
    """Which positions of an axis lie in the box, clipped at the border. centre, side: (B,) fractions; (B, length)."""
    at = torch.arange(length, device=centre.device)
    low = ((centre - side / 2) * length).round()[:, None]
    high = ((centre + side / 2) * length).round()[:, None]
    return ((at >= low) & (at < high)).float()
