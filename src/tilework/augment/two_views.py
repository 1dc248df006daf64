"""Two views of each sample, drawn apart, for objectives that compare them (MoCo v3).

B batch | C channels | H, W grid
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tilework.augment.augment import CPU, AnyStep, Augment, Step, apply_all, build_all, output_shape
from tilework.core.batch import Batch, Mix, Shape
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws

COLUMN = "other_view"


@dataclass(frozen=True)
class OtherView:
    """The second view, a column beside the first; nothing may move one without the other."""

    x: Tensor  # (B, C, H, W)

    def warp(self, affine: Tensor, grid: tuple[int, int], filled: bool = False) -> OtherView:
        """Refused."""
        raise ConfigError("an augmentation follows 'two_views'", "move it into its list of views")

    def permute(self, source: Tensor) -> OtherView:
        """Refused."""
        raise ConfigError("an augmentation follows 'two_views'", "move it into its list of views")

    def mix(self, mix: Mix) -> OtherView:
        """Refused."""
        raise ConfigError("samples are mixed after 'two_views'", "leave mixing out")

    def to(self, device: torch.device) -> OtherView:
        """The same view on a device."""
        return OtherView(self.x.to(device, non_blocking=True))

    def rows(self, which: slice) -> OtherView:
        """Some of the samples."""
        return OtherView(self.x[which])


@Augment.choices.add("two_views")
@dataclass(frozen=True)
class TwoViews(Augment):
    """A list of steps for each view: the first view is the input, the second a column."""

    views: tuple[Augment, ...] = ()
    second: tuple[Augment, ...] = ()  # steps of the second view; none: the same as of the first

    def output(self, shape: Shape) -> Shape:
        """What both lists give."""
        first, second = output_shape(self.views, shape), output_shape(self.second or self.views, shape)
        if first != second:
            raise ConfigError(f"the views of 'two_views' differ: {first} and {second}", "end both lists alike")
        return first

    def build(self, codebook: Codebook | None = None, device: torch.device = CPU) -> ViewTwice:
        """With the steps of its lists."""
        first, second = (build_all(steps, codebook, device) for steps in (self.views, self.second or self.views))
        return ViewTwice((first, second))


@dataclass(frozen=True, eq=False)
class ViewTwice(Step[tuple[Draws, Draws]]):
    """A list of steps for each view."""

    steps: tuple[tuple[AnyStep, ...], tuple[AnyStep, ...]]

    def sample(self, draws: Draws, batch: Batch) -> tuple[Draws, Draws]:
        """Independent draws for each view."""
        return draws, replace(draws, seed=~draws.seed)

    def apply(self, batch: Batch, p: tuple[Draws, Draws]) -> Batch:
        """x: (B, C, H, W)."""
        columns = dict(batch.columns)
        given = columns.pop(COLUMN, None)  # a second crop of each image, where the data hold it
        views = (batch.x, given.x if isinstance(given, OtherView) else batch.x)
        first, second = (
            apply_all(steps, batch.changed(x=x, columns=columns), draws)
            for steps, x, draws in zip(self.steps, views, p, strict=True)
        )
        return first.changed(columns={**first.columns, COLUMN: OtherView(second.x)})
