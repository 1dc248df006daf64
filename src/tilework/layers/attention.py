"""Multi-head self-attention that can carry label shares along (Vaswani et al., 2017; TL-Align, eq. 6).

B batch | N tokens | D width | S sources | k heads
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.errors import ConfigError


class Attention(nn.Module):
    """Self-attention; parameter names as in timm."""

    def __init__(self, width: int, heads: int, qkv_bias: bool = True) -> None:
        super().__init__()
        if width % heads:
            raise ConfigError(f"a width of {width} is no multiple of {heads} heads", "change model.heads")
        self.heads = heads
        self.seen: list[Tensor] | None = None  # a list, where the matrices are wanted: (B, k, N, N) with gradient
        self.qkv = nn.Linear(width, 3 * width, bias=qkv_bias)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, share: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """x: (B, N, D); share: (B, N, S) or None. Returns both after one round of attention."""
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, k, N, D/k)
        if share is None and self.seen is None:
            y = F.scaled_dot_product_attention(q, k, v)
        else:  # the matrix itself is needed
            a = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)  # (B, k, N, N)
            y = a @ v
            if self.seen is not None:
                self.seen.append(a)
            if share is not None:
                with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
                    share = a.float().mean(1) @ share
        return self.proj(y.transpose(1, 2).reshape(batch, tokens, width)), share
