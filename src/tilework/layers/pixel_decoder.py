"""Token map to image by convolutions and pixel shuffles (Good tokenizers, table 16).

Tokens reach it as a map of 196 channels by a 1x1 convolution and a resize: our reading. Convolutions are single, or
residual blocks of two. The table ends at 64 px; further doublings keep the channels of the last one.

B batch | D width of the tokens | h, w token grid | s output side
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.errors import ConfigError

SIZES = (64, 128, 256)


class ResidualConv(nn.Module):
    """Two 3x3 convolutions beside a 1x1."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, inputs, h, w)."""
        return self.shortcut(x) + self.conv2(F.relu(self.conv1(x)))


class PixelDecoder(nn.Module):
    """Images, or code maps, of what a stem gave; only training needs it."""

    def __init__(self, width: int, channels: int = 3, size: int = 64, wide: float = 1, residual: bool = False) -> None:
        super().__init__()
        thin = round(16 * wide)  # channels at 64 px
        if size not in SIZES or thin < 1 or thin != 16 * wide:
            hint = f"give one of {SIZES}, and a factor of whole sixteenths"
            raise ConfigError(f"a decoder of width x{wide:g} for {size} px", hint)

        def conv(inputs: int, outputs: int) -> nn.Module:
            return ResidualConv(inputs, outputs) if residual else nn.Conv2d(inputs, outputs, 3, padding=1)

        self.inlet = nn.Conv2d(width, 196, 1)
        layers = [conv(196, 16 * thin), nn.ReLU(), conv(16 * thin, 16 * thin), nn.ReLU(), nn.PixelShuffle(2)]
        layers += [conv(4 * thin, 4 * thin), nn.ReLU(), nn.PixelShuffle(2)]  # 16 channels at 64 px
        for _ in range((size // 64).bit_length() - 1):
            layers += [conv(thin, 4 * thin), nn.ReLU(), nn.PixelShuffle(2)]
        self.layers = nn.Sequential(*layers, conv(thin, channels))

    def forward(self, tokens: Tensor) -> Tensor:  # (B, D, h, w)
        """Returns (B, channels, s, s)."""
        return self.layers(resized(self.inlet(tokens), (16, 16)))


def resized(x: Tensor, grid: tuple[int, int]) -> Tensor:
    """A map on another grid: means of what a position covers, or interpolated on a finer grid. x: (B, C, H, W)."""
    if x.shape[2:] == torch.Size(grid):
        return x
    if grid[0] <= x.shape[2] and grid[1] <= x.shape[3]:
        return F.adaptive_avg_pool2d(x, grid)
    return F.interpolate(x, grid, mode="bilinear", align_corners=False)
