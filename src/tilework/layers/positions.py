"""Position embeddings on a grid."""

from __future__ import annotations

import torch
from torch import Tensor


def sincos_positions(width: int, height: int, columns: int) -> Tensor:
    """Fixed 2-D sine-cosine positions, half of the channels for each axis (MAE). Returns (height * columns, width)."""
    if width % 4:
        raise ValueError(f"sine-cosine positions need a width divisible by 4, not {width}")
    rates = 10000.0 ** -(torch.arange(width // 4) / (width // 4))  # (width / 4,)
    y, x = torch.meshgrid(torch.arange(height), torch.arange(columns), indexing="ij")
    parts = []
    for axis in (y, x):
        angle = axis.reshape(-1, 1) * rates
        parts += [angle.sin(), angle.cos()]
    return torch.cat(parts, 1)
