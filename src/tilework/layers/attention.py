"""Multi-head self-attention that can carry label shares along (Vaswani et al., 2017; TL-Align, eq. 6).

B batch | N tokens | D width | S sources | k heads
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.errors import ConfigError

FEW = (
    256  # tokens up to which three plain products beat torch's fused kernel on a CPU in bfloat16 (twice as fast at 50)
)


class Attention(nn.Module):
    """Self-attention; parameter names as in timm. dropout: of the matrix and of what it gives, in training."""

    def __init__(self, width: int, heads: int, qkv_bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise ConfigError(f"a width of {width} is no multiple of {heads} heads", "change model.heads")
        self.heads, self.dropout = heads, dropout
        self.seen: list[Tensor] | None = None  # a list, where the matrices are wanted: (B, k, N, N) with gradient
        self.looks: list[Tensor] | None = None  # a list, where the first token's row is wanted: (B, N), over heads
        self.qkv = nn.Linear(width, 3 * width, bias=qkv_bias)
        self.proj = nn.Linear(width, width)

    def forward(
        self, x: Tensor, share: Tensor | None = None, grid: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """x: (B, N, D); share: (B, N, S) or None. Returns both after one round of attention, on whatever grid."""
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, k, N, D/k)
        dropout = self.dropout if self.training else 0.0
        few = tokens <= FEW and q.device.type == "cpu" and q.dtype == torch.bfloat16 and not dropout
        if self.seen is None and not few:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        else:  # the matrix itself is needed, or cheaper
            a = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)  # (B, k, N, N)
            y = a @ v
            if self.seen is not None:
                self.seen.append(a)
        if self.looks is not None:
            self.looks.append(mean_attention(q[:, :, :1], k)[:, 0])
        if share is not None:
            with torch.autocast(x.device.type, enabled=False):
                share = mean_attention(q, k) @ share
        y = self.proj(y.transpose(1, 2).reshape(batch, tokens, width))
        return F.dropout(y, self.dropout) if self.training and self.dropout else y, share


def mean_attention(q: Tensor, k: Tensor) -> Tensor:
    """Attention averaged over heads, in single precision and without gradient. q: (B, k, n, D/k); returns (B, n, N).

    One head after another: beside a fused kernel this costs the scores once more, and nothing is kept for the way back.
    """
    with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
        mean = torch.zeros(q.shape[0], q.shape[2], k.shape[2], device=q.device)
        for queries, keys in zip(q.float().unbind(1), k.float().unbind(1), strict=True):
            scores = queries * q.shape[-1] ** -0.5 @ keys.transpose(1, 2)  # (B, n, N)
            mean.add_(scores.softmax(-1), alpha=1 / q.shape[1])
        return mean
