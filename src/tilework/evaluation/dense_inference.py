"""Inference of dense heads: the whole input, windows that slide over it, several scales and the mirror image.

As mmsegmentation. B batch | C channels | H, W input | h, w window | K classes | V views
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.core.errors import ConfigError
from tilework.layers.conv_norm import resized

Sides = tuple[int, int]
Ask = Callable[[Tensor], Tensor]  # input (B, C, H, W) to logits (B, K, any grid)
See = Callable[[Sides, bool], Tensor]  # height, width and whether mirrored to that view of an image, (B, C, H, W)


@dataclass(frozen=True)
class Inference:
    """How a dense head is asked."""

    mode: Literal["whole", "slide"] = "whole"
    scales: tuple[float, ...] = (1.0,)  # of the input
    flip: bool = False  # the mirror image as well

    def __post_init__(self) -> None:
        if self.mode not in ("whole", "slide"):
            raise ConfigError(f"no inference '{self.mode}'", "give whole or slide")
        if not self.scales or not all(0 < scale <= 16 for scale in self.scales):
            raise ConfigError(f"scales {self.scales}", "give at least one, above 0 and at most 16")

    @property
    def plain(self) -> bool:
        """Whether the input is seen once, as it is."""
        return self.scales == (1.0,) and not self.flip

    @torch.no_grad()
    def __call__(self, ask: Ask, x: Tensor, window: Sides, multiple: int, out: Sides | None = None) -> Tensor:
        """Logits of one view, or the mean of the probabilities of several, (B, K, *out). x: (B, C, H, W).

        window: that slides, the size trained on; multiple: of the sides that the network takes; out: H, W if not given.
        """
        grid = (x.shape[2], x.shape[3])

        def see(sides: Sides, mirrored: bool) -> Tensor:
            view = resized(x, sides)
            return view.flip(3) if mirrored else view

        return self.over(see, ask, grid, window, multiple, out or grid)

    @torch.no_grad()
    def over(self, see: See, ask: Ask, grid: Sides, window: Sides, multiple: int, out: Sides, unit: int = 1) -> Tensor:
        """The same of an image that `see` gives at any size. grid: its size at scale 1; unit: of the sides of views."""
        found: Tensor | None = None
        for scale in self.scales:
            height, width = (max(unit, int(side * scale / unit + 0.5) * unit) for side in grid)
            for mirrored in (False, True) if self.flip else (False,):
                view = see((height, width), mirrored)
                slides = self.mode == "slide"
                logits = slide(ask, view, window, multiple) if slides else ask_whole(ask, view, multiple)
                logits = resized(logits.flip(3) if mirrored else logits, out)
                if self.plain:
                    return logits
                one = logits.softmax(1)
                found = one if found is None else found + one
        assert found is not None
        return found / (len(self.scales) * (1 + self.flip))


def ask_whole(ask: Ask, x: Tensor, multiple: int) -> Tensor:
    """Logits of the whole input, (B, K, H, W), padded with zeros right and below to what the network takes."""
    height, width = x.shape[2:]
    padded = padded_to(x, (up(height, multiple), up(width, multiple)))
    logits = ask(padded).float()
    return resized(logits, (padded.shape[2], padded.shape[3]))[:, :, :height, :width]


def slide(ask: Ask, x: Tensor, window: Sides, multiple: int = 1) -> Tensor:
    """Mean logits of windows two thirds of a window apart, the last ones moved back to the edge, (B, K, H, W)."""
    height, width = x.shape[2:]
    x = padded_to(x, (max(height, window[0]), max(width, window[1])))
    step = (stride(window[0], multiple), stride(window[1], multiple))
    total: Tensor | None = None
    count = x.new_zeros(1, 1, *x.shape[2:])
    for top in starts(x.shape[2], window[0], step[0]):
        for left in starts(x.shape[3], window[1], step[1]):
            rows, columns = slice(top, top + window[0]), slice(left, left + window[1])
            logits = resized(ask(x[:, :, rows, columns]).float(), window)
            if total is None:
                total = logits.new_zeros(*logits.shape[:2], *x.shape[2:])
            total[:, :, rows, columns] += logits
            count[:, :, rows, columns] += 1
    assert total is not None
    return (total / count)[:, :, :height, :width]


def stride(window: int, multiple: int) -> int:
    """Two thirds of a window; codes are moved by whole patches, pixels by any number."""
    step = window * 2 // 3 if multiple == 1 else window * 2 // 3 // multiple * multiple
    return max(step, multiple)


def starts(side: int, window: int, step: int) -> list[int]:
    """Where windows begin: max(side - window + step - 1, 0) // step + 1 of them."""
    count = max(side - window + step - 1, 0) // step + 1
    return [min(i * step, max(side - window, 0)) for i in range(count)]


def padded_to(x: Tensor, sides: Sides) -> Tensor:
    """Zeros right and below. x: (B, C, H, W)."""
    height, width = x.shape[2:]
    return x if (height, width) == sides else F.pad(x, (0, sides[1] - width, 0, sides[0] - height))


def up(side: int, multiple: int) -> int:
    """The next multiple."""
    return -(-side // multiple) * multiple
