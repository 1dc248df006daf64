"""RandAugment: a few random operations of one strength per image (Cubuk et al., 2020), in the form DeiT uses.

DeiT's `rand-m9-mstd0.5-inc1` of timm: two of fifteen operations with replacement, each applied with probability 0.5,
strengths that grow with the magnitude. A slot of the whole batch is one look-up table, one blend and one warp.
Tables and blends give Pillow's bytes. What differs from timm: warps are bilinear (timm: bicubic as DeiT sets it, or
either at random) and round where Pillow cuts off; posterise keeps at least one bit (timm keeps none at magnitude 10).

B batch | b samples that have an operation | S slots | H, W pixels
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.augment.augment import Augment, Stateless
from tilework.core.batch import Batch, Stage
from tilework.core.bounds import check_shares
from tilework.core.rng import Draws


class Op(IntEnum):
    """The operations: tables, then blends, then warps; `NONE` leaves the image."""

    AUTO_CONTRAST = 0
    EQUALISE = 1
    INVERT = 2
    POSTERISE = 3
    SOLARISE = 4
    SOLARISE_ADD = 5
    COLOUR = 6
    CONTRAST = 7
    BRIGHTNESS = 8
    SHARPNESS = 9
    ROTATE = 10
    SHEAR_X = 11
    SHEAR_Y = 12
    TRANSLATE_X = 13
    TRANSLATE_Y = 14
    NONE = 15


class Choice(NamedTuple):
    """What happens to each sample, slot by slot."""

    op: Tensor  # (B, S) numbers of Op
    level: Tensor  # (B, S) strength in [0, 1]: magnitude / 10
    sign: Tensor  # (B, S) -1 or 1, for blends and warps


def look_up(x: Tensor, op: Tensor, level: Tensor) -> Tensor:
    """The first six operations: a table per sample and channel. x: (b, 3, H, W) bytes; op, level: (b,)."""
    i = torch.arange(256, device=x.device)
    flat, level = x.flatten(2).long(), level[:, None, None]
    low, high = x.amin((2, 3)).long()[..., None], x.amax((2, 3)).long()[..., None]  # (b, 3, 1)
    span = (high - low).clamp(min=1).double()  # Pillow's precision: the cut to whole numbers depends on it
    scale = torch.full_like(span, 255) / span
    stretched = torch.where(high > low, (i * scale - low * scale).long(), i)
    counts = on_chosen(torch.zeros_like(high).repeat(1, 1, 256), op == Op.EQUALISE, count, flat)
    step = (flat.shape[2] - counts.gather(2, high)) // 255  # pixels per output level; 0: too few to spread
    below = counts.cumsum(2) - counts
    equalised = torch.where(step > 0, (step // 2 + below) // step.clamp(min=1), i)
    dropped = (4 + (4 * level).long()).clamp(max=7)  # bits
    posterised = i >> dropped << dropped
    solarised = torch.where(i < 256 - (256 * level).long(), i, 255 - i)
    lifted = torch.where(i < 128, i + (110 * level).long(), i)
    options = [stretched, equalised, 255 - i, posterised, solarised, lifted]
    tables = torch.stack([option.expand(len(x), 3, 256) for option in options])
    table = tables[op.clamp(max=5), torch.arange(len(x), device=x.device)]  # (b, 3, 256)
    return table.clamp(0, 255).to(torch.uint8).gather(2, flat).view_as(x)


def count(zeros: Tensor, values: Tensor) -> Tensor:
    """How often each value occurs. zeros: (b, 3, 256); values: (b, 3, H W); both int64."""
    return zeros.scatter_add(2, values, torch.ones_like(values))


def blend(x: Tensor, op: Tensor, factor: Tensor) -> Tensor:
    """Away from or towards a plainer image: grey, its mean, black, blurred. x: (b, 3, H, W) bytes; factor: (b,)."""
    full, kind, pixels = x.float(), op[:, None, None, None], x.shape[2] * x.shape[3]
    red, green, blue = full.split(1, 1)
    grey = ((red * 19595 + green * 38470 + blue * 7471 + 32768) / 65536).floor()  # ITU-R 601; exact, below 2^24
    mean = (2 * grey.long().sum((1, 2, 3), keepdim=True) + pixels) // (2 * pixels)  # rounded
    plain = torch.where(kind == Op.COLOUR, grey, torch.where(kind == Op.CONTRAST, mean.float(), 0.0))  # (b, 1, H, W)
    plain = on_chosen(plain.expand_as(full), op == Op.SHARPNESS, lambda _, image: smooth(image), full)
    return ((full - plain) * factor[:, None, None, None]).add_(plain).clamp_(0, 255).to(torch.uint8)


def smooth(x: Tensor) -> Tensor:
    """Mean of 3x3 pixels with five times the weight on the middle one; the border stays. x: (b, 3, H, W) floats."""
    rows = x[..., :-2, :] + x[..., 1:-1, :] + x[..., 2:, :]
    around = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    out = x.clone()
    out[..., 1:-1, 1:-1] = ((around + 4 * x[..., 1:-1, 1:-1]) / 13).round()
    return out


def affine_map(op: Tensor, amount: Tensor, ratio: float) -> Tensor:
    """Output-to-input maps of the last five operations, else the identity; shears keep the upper left corner.

    op: (B,); amount: (B,) signed level; ratio: H / W; returns (B, 2, 3).
    """

    def of(which: Op, most: float) -> Tensor:
        return torch.where(op == which, amount * most, torch.zeros_like(amount))

    angle, across, down = of(Op.ROTATE, math.radians(30)), of(Op.SHEAR_X, 0.3 * ratio), of(Op.SHEAR_Y, 0.3 / ratio)
    right, lower = of(Op.TRANSLATE_X, 2 * 0.45), of(Op.TRANSLATE_Y, 2 * 0.45)
    sine, cosine = angle.sin(), angle.cos()
    return torch.stack(
        [
            torch.stack([cosine, across - sine * ratio, across + right], -1),
            torch.stack([down + sine / ratio, cosine, down + lower], -1),
        ],
        1,
    )


def warp(x: Tensor, affine: Tensor, fill: tuple[int, int, int]) -> Tensor:
    """Bilinear resampling; what falls outside the image is filled. x: (b, 3, H, W) bytes; affine: (b, 2, 3)."""
    down, across = ((torch.arange(n, device=x.device) * 2 + 1) / n - 1 for n in x.shape[2:])
    rows = affine[:, :, 1:2] * down + affine[:, :, 2:]  # (b, 2, H)
    places = rows[..., None] + (affine[:, :, :1] * across)[:, :, None]  # (b, 2, H, W)
    inside = places.abs().amax(1, keepdim=True) < 1
    grid = places.permute(0, 2, 3, 1)
    out = F.grid_sample(x.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
    colour = torch.tensor(fill, dtype=torch.float32, device=x.device).view(3, 1, 1)
    return torch.where(inside, out.round_(), colour).to(torch.uint8)


def can_count(device: torch.device) -> bool:
    """Whether the number of chosen samples is known at no cost; elsewhere it would wait for the device."""
    return device.type == "cpu"


def on_chosen(x: Tensor, chosen: Tensor, change: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
    """x with some samples changed, the others as they were. x: (B, ...); chosen: (B,); arguments: (B, ...)."""
    if not can_count(x.device):
        return torch.where(chosen.view(-1, *[1] * (x.ndim - 1)), change(x, *arguments), x)
    rows = chosen.nonzero()[:, 0]
    new = change(*(argument.index_select(0, rows) for argument in (x, *arguments)))
    source = torch.arange(len(x)).index_copy(0, rows, torch.arange(len(rows)) + len(x))
    return torch.cat([x, new]).index_select(0, source)  # copies whole samples, unlike assignment by index


@Augment.choices.add("rand_augment")
@dataclass(frozen=True)
class RandAugment(Stateless[Choice]):
    """`ops` random operations per image; comes before 'normalise'.

    magnitude: mean strength on a scale of 10, with Gaussian noise of `deviation`. fill: colour beyond the border.
    """

    stages: ClassVar[tuple[Stage, ...]] = ("pixels",)
    ops: int = 2
    magnitude: float = 9.0
    deviation: float = 0.5
    probability: float = 0.5
    fill: tuple[int, int, int] = (124, 116, 104)

    def __post_init__(self) -> None:
        check_shares(self, "probability")

    def sample(self, draws: Draws, batch: Batch) -> Choice:
        """Operations and their strengths."""
        u = draws.uniform("rand_augment", 4 * self.ops).view(-1, self.ops, 4)  # (B, S, 4): which, whether, noise, sign
        op = torch.where(u[..., 1] < self.probability, (u[..., 0] * Op.NONE).long(), int(Op.NONE))
        normal = torch.erfinv(2 * u[..., 2] + (2**-24 - 1)) * math.sqrt(2)  # never infinite
        level = ((self.magnitude + self.deviation * normal) / 10).clamp(0, 1)
        return Choice(op, level, torch.where(u[..., 3] < 0.5, -1.0, 1.0))

    def apply(self, batch: Batch, p: Choice) -> Batch:
        """x: (B, 3, H, W) bytes, or floats in [0, 255] that become whole numbers; columns follow."""
        x = batch.x if batch.x.dtype == torch.uint8 else batch.x.round().clamp(0, 255).to(torch.uint8)
        columns, (height, width) = batch.columns, x.shape[2:]
        move = partial(warp, fill=self.fill)
        for op, level, sign in zip(p.op.unbind(1), p.level.unbind(1), p.sign.unbind(1), strict=True):
            affine = affine_map(op, level * sign, height / width)
            columns = {name: column.warp(affine, (height, width), filled=True) for name, column in columns.items()}
            x = on_chosen(x, op < Op.COLOUR, look_up, op, level)
            x = on_chosen(x, (op >= Op.COLOUR) & (op < Op.ROTATE), blend, op, 1 + 0.9 * level * sign)
            x = on_chosen(x, (op >= Op.ROTATE) & (op < Op.NONE), move, affine)
        return batch.changed(x=x.to(batch.x.dtype), columns=columns)
