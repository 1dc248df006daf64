"""A convolutional block: depthwise 5x5, then two 1x1, on a residual branch (after ConvNeXt, Liu et al., 2022).

B batch | D width | h, w grid
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class ConvBlock(nn.Module):
    """Looks two positions far; a fraction of the cost of attention on small grids."""

    def __init__(self, width: int, groups: int, ratio: int = 4) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm = nn.GroupNorm(groups, width)
        self.fc1 = nn.Conv2d(width, ratio * width, 1)
        self.fc2 = nn.Conv2d(ratio * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, D, h, w)."""
        return x + self.fc2(F.gelu(self.fc1(self.norm(self.depthwise(x)))))
