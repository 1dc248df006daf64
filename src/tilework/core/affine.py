"""Maps from output to input coordinates, both in [-1, 1] over the outer edges: crop, flip and turn alike.

B batch | T tries
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

import torch
from torch import Tensor

TRIES = 10  # boxes drawn before the fallback, as torchvision and timm do


class Boxes(NamedTuple):
    """Boxes of whole positions, (B,) each."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor


def follow(first: Tensor, second: Tensor) -> Tensor:
    """Compose two maps, `first` applied to the image before `second`. Each (B, 2, 3) output to input."""
    linear, shift = first[:, :, :2], first[:, :, 2:]
    return torch.cat([linear @ second[:, :, :2], linear @ second[:, :, 2:] + shift], -1)


def inverse(affine: Tensor) -> Tensor:
    """Map from input to output. affine: (B, 2, 3)."""
    (a, b, x), (c, d, y) = (row.unbind(-1) for row in affine.unbind(1))
    area = a * d - b * c
    linear = torch.stack([torch.stack([d, -b], -1), torch.stack([-c, a], -1)], 1) / area[:, None, None]
    return torch.cat([linear, -linear @ torch.stack([x, y], -1)[..., None]], -1)


def box_affine(top: Tensor, left: Tensor, height: Tensor, width: Tensor) -> Tensor:
    """Output-to-input map of a crop box given in fractions of the input. Each (B,); returns (B, 2, 3)."""
    zero = torch.zeros_like(top)
    return torch.stack(
        [
            torch.stack([width, zero, 2 * left + width - 1], -1),
            torch.stack([zero, height, 2 * top + height - 1], -1),
        ],
        1,
    )


def try_boxes(
    u: Tensor, rows: Tensor, columns: Tensor, area: tuple[float, float], aspect: tuple[float, float]
) -> Boxes:
    """Boxes of random area and aspect, whether they fit or not. u: (B, T, 4) in [0, 1); rows, columns: (B, 1).

    Sides are those asked for; places are what they are where the box fits. Each (B, T).
    """
    pixels = (area[0] + (area[1] - area[0]) * u[..., 0]) * (rows * columns)
    low, high = log(aspect[0]), log(aspect[1])
    ratio = torch.exp(low + (high - low) * u[..., 1])
    width, height = (pixels * ratio).sqrt().round(), (pixels / ratio).sqrt().round()
    return Boxes((u[..., 2] * (rows - height + 1)).floor(), (u[..., 3] * (columns - width + 1)).floor(), height, width)


def first_that(fits: Tensor, tried: Boxes) -> Boxes:
    """Of each row the first box that fits; the first of all where none does. fits: (B, T)."""
    which = fits.to(torch.uint8).argmax(1, keepdim=True)
    return Boxes(*(part.gather(1, which)[:, 0] for part in tried))


def random_boxes(
    u: Tensor, rows: Tensor, columns: Tensor, area: tuple[float, float], aspect: tuple[float, float]
) -> Boxes:
    """Crop boxes as torchvision draws them: ten tries, then the largest box in the middle whose aspect is allowed.

    u: (B, 4 T) in [0, 1); rows, columns: (B,) of each image, floats.
    """
    tried = try_boxes(u.unflatten(1, (-1, 4)), rows[:, None], columns[:, None], area, aspect)
    fits = (tried.height > 0) & (tried.height <= rows[:, None]) & (tried.width > 0) & (tried.width <= columns[:, None])
    height = torch.minimum(rows, (columns / aspect[0]).round()).clamp(min=1)
    width = torch.minimum(columns, (rows * aspect[1]).round()).clamp(min=1)
    middle = Boxes(((rows - height) / 2).floor(), ((columns - width) / 2).floor(), height, width)
    some = fits.any(1)
    return Boxes(*(torch.where(some, *pair) for pair in zip(first_that(fits, tried), middle, strict=True)))
