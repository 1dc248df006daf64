"""Colour jitter: brightness, contrast, saturation and hue in random order (torchvision's ColorJitter; MoCo v3).

Bytes are those of Pillow, which torchvision uses on images: blends with black, the mean grey and the grey image, and
hue as a byte that wraps around.

B batch | b samples that are changed | H, W pixels
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from tilework.augment.augment import Augment, Stateless
from tilework.augment.rand_augment import Op, blend, on_chosen, whole_bytes
from tilework.core.batch import Batch, Stage
from tilework.core.bounds import check_shares
from tilework.core.rng import Draws


class Change(IntEnum):
    """What is changed: columns of the factors."""

    BRIGHTNESS = 0
    CONTRAST = 1
    SATURATION = 2
    HUE = 3


BLENDS = {Change.BRIGHTNESS: Op.BRIGHTNESS, Change.CONTRAST: Op.CONTRAST, Change.SATURATION: Op.COLOUR}


class Jitter(NamedTuple):
    """What happens to each sample."""

    chosen: Tensor  # (B,) whether
    factor: Tensor  # (B, 4) by `Change`: of the blends, around 1; of the hue, a part of the circle
    order: Tensor  # (B, 4) numbers of `Change`


@Augment.choices.add("colour_jitter")
@dataclass(frozen=True)
class ColourJitter(Stateless[Jitter]):
    """Each of the four by a random amount up to its own; comes before 'normalise'. The defaults are MoCo v3's."""

    stages: ClassVar[tuple[Stage, ...]] = ("pixels",)
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.2
    hue: float = 0.1
    probability: float = 0.8

    def __post_init__(self) -> None:
        check_shares(self, "probability")
        if min(self.brightness, self.contrast, self.saturation) < 0 or not 0 <= self.hue <= 0.5:
            raise ValueError("amounts must not be negative, and hue not above 0.5")

    def sample(self, draws: Draws, batch: Batch) -> Jitter:
        """Factors from [1 - amount, 1 + amount], not below 0; of the hue from [-hue, hue]."""
        u = draws.uniform("colour_jitter", 9)  # (B, 9): whether, four factors, four places in the order
        most = torch.tensor([self.brightness, self.contrast, self.saturation], device=u.device)
        low = (1 - most).clamp(min=0)
        factor = torch.cat([low + u[:, 1:4] * (1 + most - low), (2 * u[:, 4:5] - 1) * self.hue], 1)
        return Jitter(u[:, 0] < self.probability, factor, u[:, 5:].argsort(1))

    def apply(self, batch: Batch, p: Jitter) -> Batch:
        """x: (B, 3, H, W) bytes, or floats in [0, 255] that become whole numbers."""
        x = whole_bytes(batch.x)
        for change in p.order.unbind(1):  # (B,) at each place of the order
            for kind, op in BLENDS.items():
                chosen = p.chosen & (change == kind)
                x = on_chosen(x, chosen, blend, torch.full_like(change, int(op)), p.factor[:, kind])
            x = on_chosen(x, p.chosen & (change == Change.HUE), turn_hue, p.factor[:, Change.HUE])
        return batch.changed(x=x.to(batch.x.dtype))


def turn_hue(x: Tensor, factor: Tensor) -> Tensor:
    """Hue moved by a part of the circle, in Pillow's bytes. x: (b, 3, H, W) bytes; factor: (b,) in [-0.5, 0.5]."""
    hue, saturation, value = to_hsv(x)
    shift = (factor.double() * 255).trunc().long()[:, None, None]  # towards zero
    return to_rgb((hue + shift) & 255, saturation, value)


def to_hsv(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hue, saturation and value as Pillow has them, (b, H, W) int64 in [0, 255]. x: (b, 3, H, W) bytes."""
    value, low = x.amax(1), x.amin(1)
    spread = (value.float() - low.float()).clamp(min=1)
    red, green, blue = ((value[:, None].float() - x.float()) / spread[:, None]).unbind(1)
    sixth = torch.where(x[:, 1] == value, 2 + red.double() - blue, 4 + green.double() - red)
    sixth = torch.where(x[:, 0] == value, (blue - green).double(), sixth).float()
    hue = ((sixth.double() / 6 + 1) % 1).float()
    saturation = spread / value.float().clamp(min=1)
    flat = value == low
    hue, saturation = (torch.where(flat, 0, (part.double() * 255).long()) for part in (hue, saturation))
    return hue, saturation, value.long()


def to_rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """The inverse, up to rounding: (b, 3, H, W) bytes. Each (b, H, W) int64 in [0, 255]."""
    turns = hue.double() * 6 / 255
    sector = turns.floor()
    part, share = (turns - sector).float().double(), (saturation.float() / 255).double()
    full = value.double()
    low, falling, rising = ((full * (1 - s) + 0.5).floor() for s in (share, share * part, share * (1 - part)))
    sector = sector.long() % 6
    channels = []
    for options in ((full, falling, low, low, rising, full), (rising, full, full, falling, low, low)):
        channels.append(torch.stack(options).gather(0, sector[None])[0])
    channels.append(torch.stack((low, low, rising, full, full, falling)).gather(0, sector[None])[0])
    return torch.stack(channels, 1).clamp(0, 255).to(torch.uint8)
