"""Pyramid pooling: what averages over coarse grids say of a whole scene (PSPNet; Zhao et al., 2017).

B batch | C channels | D width | h, w grid | p side of a pool
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.layers.conv_norm import ConvNorm, Norm, resized


class PyramidPooling(nn.Module):
    """A map beside its averages over p x p parts, for each p; a convolution joins them."""

    def __init__(self, channels: int, width: int, pools: tuple[int, ...] = (1, 2, 3, 6), norm: Norm = "batch") -> None:
        super().__init__()
        self.pools = pools
        self.branches = nn.ModuleList(ConvNorm(channels, width, 1, norm) for _ in pools)
        self.bottleneck = ConvNorm(channels + len(pools) * width, width, 3, norm)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, C, h, w); returns (B, D, h, w)."""
        grid = (x.shape[2], x.shape[3])
        pooled = [
            resized(branch(F.adaptive_avg_pool2d(x, p)), grid)
            for branch, p in zip(self.branches, self.pools, strict=True)
        ]
        return self.bottleneck(torch.cat([x, *pooled], 1))
