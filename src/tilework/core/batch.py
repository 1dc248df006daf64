"""Batches and their labels, from the data to the objective.

B batch | H, W code or pixel grid | C code dim | h, w token grid | N = h w | M classes named per target | S sources
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

Stage = Literal["ids", "stacks", "map", "pixels"]  # stacks: several codes at each position


@dataclass(frozen=True)
class Shape:
    """Kind and size of the samples of a data set, before or after augmentation."""

    stage: Stage
    channels: int  # of pixels or code maps; of codes, the length of their vectors
    grid: tuple[int, int]

    @property
    def is_sequence(self) -> bool:
        """Whether samples are code sequences without positions in the image (TiTok)."""
        return self.stage == "ids" and self.grid[0] == 1


@dataclass(frozen=True)
class Target:
    """Soft labels as a short list of classes and weights, for an image or for each token.

    `spread` is probability shared evenly by all classes, as in label smoothing. A row whose weights and spread sum to
    less than one contributes to the loss by that sum (a token partly outside the image); a row of zeros has no label.
    """

    ids: Tensor  # (B, M) or (B, N, M)
    weight: Tensor  # same shape; of a class, without its part of the spread
    spread: Tensor | None = None  # (B, S) or (B, N, S), one for each source image; None: no spread, weights sum to 1

    @staticmethod
    def hard(labels: Tensor) -> Target:
        """One class with weight one. labels: (B,) or (B, N)."""
        return Target(labels[..., None], torch.ones_like(labels, dtype=torch.float32)[..., None])

    @property
    def mass(self) -> Tensor:
        """Sum of weights and spread of each row, (B,) or (B, N)."""
        named = self.weight.sum(-1)
        return named if self.spread is None else named + self.spread.sum(-1)

    def mix(self, partner: Tensor, share: Tensor) -> Target:
        """Own classes with weight `share`, the partner's with the rest. partner: (B,); share: (B,) or (B, N)."""
        share = share[..., None]

        def both(part: Tensor) -> Tensor:
            return torch.cat([part * share, part[partner] * (1 - share)], -1)

        spread = None if self.spread is None else both(self.spread)
        return Target(torch.cat([self.ids, self.ids[partner]], -1), both(self.weight), spread)

    def reweigh(self, share: Tensor) -> Target:
        """Labels of a mixture with new shares of its S source images. share: (B, S)."""
        parts = self.weight.unflatten(-1, (share.shape[-1], -1))  # (B, S, M / S)
        whole = parts.sum(-1, keepdim=True)
        if self.spread is not None:
            whole = whole + self.spread[..., None]
        whole = whole.clamp(min=1e-12)  # a source without area has no share either
        spread = None if self.spread is None else self.spread / whole[..., 0] * share
        return Target(self.ids, (parts / whole * share[..., None]).flatten(-2), spread)

    def each(self, change: Callable[[Tensor], Tensor]) -> Target:
        """Apply a function to every tensor: move to a device, select rows."""
        spread = None if self.spread is None else change(self.spread)
        return Target(change(self.ids), change(self.weight), spread)

    def to(self, device: torch.device) -> Target:
        """The same labels on a device."""
        return self.each(lambda part: part.to(device, non_blocking=True))


@dataclass(frozen=True)
class Mix:
    """How each sample is mixed with a partner: mixup, CutMix, MixToken, random or block-wise patches."""

    partner: Tensor  # (B,)
    own: Tensor  # (B, h, w) share of the sample itself
    after_stem: bool = False  # True: the model mixes its tokens (MixToken); False: the input is mixed already

    def to(self, device: torch.device) -> Mix:
        """The same mixture on a device."""
        return replace(
            self, partner=self.partner.to(device, non_blocking=True), own=self.own.to(device, non_blocking=True)
        )

    def at(self, height: int, width: int) -> Tensor:
        """Own share on another grid, by area. Returns (B, height, width)."""
        if self.own.shape[1:] == (height, width):
            return self.own
        return F.interpolate(self.own[:, None], (height, width), mode="area")[:, 0]

    def apply(self, x: Tensor) -> Tensor:
        """Mix a map with its partners; uint8 becomes float. x: (B, C, H, W)."""
        x = x if x.is_floating_point() else x.float()
        own = self.at(x.shape[2], x.shape[3]).to(x.dtype)
        if x.is_contiguous() or not x.is_contiguous(memory_format=torch.channels_last):
            return torch.lerp(x.index_select(0, self.partner), x, own[:, None])
        y = x.permute(0, 2, 3, 1)  # channels lie together in memory, and stay so
        return torch.lerp(y.index_select(0, self.partner), y, own[..., None]).permute(0, 3, 1, 2)


class Column(Protocol):
    """Data that augmentation must transform along with the input: score maps, masks, boxes."""

    def warp(self, affine: Tensor, grid: tuple[int, int], filled: bool = False) -> Column:
        """Resample by a (B, 2, 3) output-to-input map onto a grid; filled: outside the image is padding."""

    def permute(self, source: Tensor) -> Column:
        """Take each position from another one. source: (B, H, W) flat positions on the input grid."""

    def mix(self, mix: Mix) -> Column:
        """Mix with the partners, as the input is mixed."""

    def to(self, device: torch.device) -> Column:
        """The same data on a device."""

    def rows(self, which: slice) -> Column:
        """Some of the samples."""


@runtime_checkable
class Framed(Protocol):
    """A column that knows where the image lies on the input: masks."""

    def frame(self) -> tuple[Tensor, Tensor]:
        """Height and width of each image, (B, 2), and the map from the image to the input, (B, 2, 3)."""

    def inside(self, height: int, width: int) -> Tensor:
        """Whether every position of the input on a grid shows the image, (B, height, width)."""

    def largest_share(self, affine: Tensor) -> Tensor:
        """Share of the most frequent class among what is labelled in a box of the input, (B,); 0 where nothing is."""


@dataclass(frozen=True)
class Batch:
    """Input, labels and columns of some samples."""

    x: Tensor  # ids (B, H, W) | stacks of ids (B, C, H, W) | code map (B, C, H, W) | pixels (B, 3, H, W)
    target: Target
    index: Tensor  # (B,) global sample index, which seeds the random draws of each sample
    columns: dict[str, Column] = field(default_factory=dict)
    mix: Mix | None = None
    deviation: float | None = None  # of the code vectors that x was looked up in; None: x is none of vectors

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        return replace(
            self,
            x=self.x.to(device, non_blocking=True),
            target=self.target.to(device),
            index=self.index.to(device, non_blocking=True),
            columns={name: column.to(device) for name, column in self.columns.items()},
            mix=None if self.mix is None else self.mix.to(device),
        )

    def pin(self) -> Batch:
        """The same batch in pinned memory, for asynchronous copies to the device."""
        target = self.target.each(Tensor.pin_memory)
        return replace(self, x=self.x.pin_memory(), target=target, index=self.index.pin_memory())

    def rows(self, which: slice) -> Batch:
        """Some of the samples; not for a mixed batch, whose partners may be left out."""
        return replace(
            self,
            x=self.x[which],
            target=self.target.each(lambda part: part[which]),
            index=self.index[which],
            columns={name: column.rows(which) for name, column in self.columns.items()},
        )

    def changed(self, **fields: Any) -> Batch:
        """A copy with some fields replaced."""
        return replace(self, **fields)
