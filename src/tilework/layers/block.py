"""The pre-norm transformer block with drop path (Dosovitskiy et al., 2021; Huang et al., 2016).

B batch | N tokens | D width | S sources
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.layers.attention import Attention


class Mlp(nn.Module):
    """Two linear layers with a GELU between; dropout after each."""

    def __init__(self, width: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.fc1 = nn.Linear(width, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, N, D)."""
        return self._drop(self.fc2(self._drop(self.act(self.fc1(x)))))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout) if self.training and self.dropout else x


class Block(nn.Module):
    """Attention and MLP, each on a residual branch that training drops for some samples.

    divisor: of what the branches add (LV-ViT). `share` is the part of each source image in each token (TL-Align): fp32,
    without gradient, returned and never kept. A residual connection averages it with its attended version, which
    weighs less by the divisor; a dropped branch leaves it alone.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        mlp_ratio: float = 4.0,
        drop_path: float = 0.0,
        qkv_bias: bool = True,
        eps: float = 1e-6,
        divisor: float = 1.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.drop_path, self.divisor = drop_path, divisor
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.attn = Attention(width, heads, qkv_bias, dropout)
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.mlp = Mlp(width, int(width * mlp_ratio), dropout)

    def forward(
        self, x: Tensor, share: Tensor | None = None, grid: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """x: (B, N, D); share: (B, N, S) or None; grid: of the tokens, where not the one built for."""
        kept = self._kept(x)
        y, attended = self.attn(self.norm1(x), share, grid)
        x = x + self._drop(y, kept)
        if share is not None and attended is not None:
            aligned = (self.divisor * share + attended) / (self.divisor + 1)
            share = aligned if kept is None else torch.where(kept, aligned, share)
        return x + self._drop(self.mlp(self.norm2(x)), self._kept(x)), share

    def _kept(self, x: Tensor) -> Tensor | None:
        """Which samples keep their branch, (B, 1, 1); None: all of them."""
        if not self.training or self.drop_path == 0:
            return None
        return torch.rand(x.shape[0], 1, 1, device=x.device) >= self.drop_path

    def _drop(self, y: Tensor, kept: Tensor | None) -> Tensor:
        if kept is not None:
            return y * kept / ((1 - self.drop_path) * self.divisor)
        return y if self.divisor == 1 else y / self.divisor
