"""A residual connection with drop path, for tokens, maps and label shares (Huang et al., 2016; TL-Align, table 2).

B batch | N tokens | S sources
"""

from __future__ import annotations

import torch
from torch import Tensor


def add_branch(
    x: Tensor, y: Tensor, drop: float, share: Tensor | None = None, mixed: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """x + y, and the mean of the shares before and after the branch; a sample drops its branch with chance `drop`.

    x, y: (B, ...). share, mixed: (B, N, S) or None; a dropped branch leaves the shares alone.
    """
    averaged = share if share is None or mixed is None else (share + mixed) / 2
    if drop == 0:
        return x + y, averaged
    kept = torch.rand(len(x), 1, 1, device=x.device) >= drop
    if share is not None and averaged is not None:
        averaged = torch.where(kept, averaged, share)
    return x + y * kept.view(-1, *[1] * (x.ndim - 1)) / (1 - drop), averaged
