"""Vectors of codes that a model learns for itself: a table, a norm, dropout (SeiT++, published code).

B batch | H, W code grid | K codes | C code dim
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

EPS = 1e-6


class CodeTable(nn.Module):
    """Codes to vectors; training drops some of their numbers.

    The norm has no scale and shift of its own: a stem that follows has them already. So a normalised table stays as it
    is when it is normalised again, and a run can go on with the vectors that another one ended with.
    """

    def __init__(self, start: Tensor, norm: bool = True, dropout: float = 0.1, trained: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(start.clone(), requires_grad=trained)  # (K, C)
        self.norm, self.dropout = norm, dropout

    def vectors(self) -> Tensor:
        """What stands for each code, (K, C)."""
        return F.layer_norm(self.weight, self.weight.shape[1:], eps=EPS) if self.norm else self.weight

    def forward(self, ids: Tensor) -> Tensor:
        """ids: (B, H, W); returns (B, C, H, W), channels lying together in memory."""
        x = F.embedding(ids.long(), self.vectors())
        return (F.dropout(x, self.dropout) if self.training and self.dropout else x).permute(0, 3, 1, 2)
