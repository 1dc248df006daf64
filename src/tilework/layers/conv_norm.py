"""Convolution, norm and ReLU: the unit that heads of dense tasks are made of.

B batch | D channels | h, w grid
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.errors import ConfigError

Norm = Literal["batch", "group"]
GROUPS = 32


class ConvNorm(nn.Module):
    """A convolution without bias, batch or group norm, ReLU; the map keeps its size."""

    def __init__(self, channels: int, width: int, kernel: int, norm: Norm = "batch") -> None:
        super().__init__()
        if norm not in ("batch", "group"):
            raise ConfigError(f"no norm '{norm}'", "give batch or group")
        self.conv = nn.Conv2d(channels, width, kernel, padding=kernel // 2, bias=False)
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")
        self.bn = nn.BatchNorm2d(width) if norm == "batch" else nn.GroupNorm(max(1, min(GROUPS, width // 2)), width)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, C, h, w)."""
        if self.training and isinstance(self.bn, nn.BatchNorm2d) and x[:, 0].numel() == 1:
            what = "batch norm needs more than one value of a channel, and pooling a batch of 1 leaves one"
            raise ConfigError(what, "raise fit.batch per process, lower fit.accumulate, or set model.norm=group")
        return F.relu(self.bn(self.conv(x)))


def resized(x: Tensor, grid: tuple[int, int]) -> Tensor:
    """Bilinear, corners not aligned. x: (B, D, h, w)."""
    return x if x.shape[2:] == grid else F.interpolate(x, grid, mode="bilinear", align_corners=False)
