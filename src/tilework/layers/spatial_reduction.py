"""Attention whose keys and values are tokens of a coarser grid (PVT, Wang et al., 2021).

B batch | N tokens | n keys | D width | S sources | k heads
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.errors import ConfigError
from tilework.layers.shares import pool_shares


class SpatialReductionAttention(nn.Module):
    """One strided convolution makes a key of each `reduction` x `reduction` tokens; parameter names as published.

    The labels of a key are the mean over its window. Without reduction there may be tokens beside those of the grid.
    """

    def __init__(self, width: int, heads: int, grid: tuple[int, int], reduction: int) -> None:
        super().__init__()
        if width % heads:
            raise ConfigError(f"a width of {width} is no multiple of {heads} heads", "change model.heads")
        self.heads, self.grid, self.reduction = heads, grid, reduction
        self._refuse_uneven(grid)
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.proj = nn.Linear(width, width)
        if reduction > 1:
            self.sr = nn.Conv2d(width, width, reduction, stride=reduction)
            self.norm = nn.LayerNorm(width)

    def _refuse_uneven(self, grid: tuple[int, int]) -> None:
        if grid[0] % self.reduction or grid[1] % self.reduction:
            raise ConfigError(
                f"a map of {grid[0]}x{grid[1]} does not divide into windows of {self.reduction}",
                "change the size or model.reductions",
            )

    def forward(
        self, x: Tensor, share: Tensor | None = None, grid: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """x: (B, N, D); share: (B, N, S) or None; grid: of the tokens, where not the one built for.

        Returns both after one round of attention.
        """
        grid = grid or self.grid
        batch, tokens, width = x.shape
        keys = x
        if self.reduction > 1:
            self._refuse_uneven(grid)
            keys = self.sr(x.transpose(1, 2).unflatten(2, grid))  # (B, D, h / reduction, w / reduction)
            keys = self.norm(keys.flatten(2).transpose(1, 2))  # (B, n, D)
        q = self.q(x).reshape(batch, tokens, self.heads, -1).transpose(1, 2)  # (B, k, N, D/k)
        k, v = self.kv(keys).reshape(batch, keys.shape[1], 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        if share is None:
            y = F.scaled_dot_product_attention(q, k, v)
        else:  # the matrix itself is needed
            a = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1, dtype=torch.float32)  # (B, k, N, n)
            y = a.to(v.dtype) @ v
            with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
                if self.reduction > 1:
                    share = pool_shares(share, grid, self.reduction, self.reduction)  # (B, n, S)
                share = a.mean(1) @ share
        return self.proj(y.transpose(1, 2).reshape(batch, tokens, width)), share
