"""Light and colour of ImageNet-C: brightness, contrast, saturation.

B batch | H, W pixels
"""

from __future__ import annotations

import torch
from torch import Tensor

from tilework.evaluation.corruptions.kind import Corruption, in_unit


def _brightness(x: Tensor, c: float, p: None, scale: float) -> Tensor:
    """V of HSV raised: hue and saturation stay, so channels keep their ratios; black becomes grey."""
    y = in_unit(x)
    value = y.amax(1, keepdim=True)
    brighter = (value + c).clamp_(max=1)
    return torch.where(value > 0, y * (brighter / value), brighter)


def _saturate(x: Tensor, c: tuple[float, float], p: None, scale: float) -> Tensor:
    """S of HSV changed: the distance of channels from the largest; grey has hue 0, red."""
    y = in_unit(x)
    value, least = y.amax(1, keepdim=True), y.amin(1, keepdim=True)
    spread = value - least
    saturation = torch.where(value > 0, spread / value, 0.0)
    wanted = (saturation * c[0] + c[1]).clamp_(0, 1)
    red = torch.tensor([0.0, 1.0, 1.0]).view(3, 1, 1)
    return value * (1 - wanted * torch.where(spread > 0, (value - y) / spread, red))


def _contrast(x: Tensor, c: float, p: None, scale: float) -> Tensor:
    y = in_unit(x)
    mean = y.mean((2, 3), keepdim=True)
    return torch.lerp(mean, y, c)


BRIGHTNESS = Corruption((0.1, 0.2, 0.3, 0.4, 0.5), _brightness)
CONTRAST = Corruption((0.4, 0.3, 0.2, 0.1, 0.05), _contrast)
SATURATE = Corruption(((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)), _saturate)
