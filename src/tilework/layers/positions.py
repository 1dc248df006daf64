"""Position embeddings on a grid."""

from __future__ import annotations

import torch
from torch import Tensor

from tilework.core.errors import ConfigError


def sincos_positions(width: int, height: int, columns: int) -> Tensor:
    """Fixed 2-D sine-cosine positions, columns in the first half of the channels (MAE). (height * columns, width)."""
    if width % 4:
        raise ConfigError(f"sine-cosine positions need a width divisible by 4, not {width}", "change model.width")
    rates = 10000.0 ** -(torch.arange(width // 4) / (width // 4))  # (width / 4,)
    y, x = torch.meshgrid(torch.arange(height), torch.arange(columns), indexing="ij")
    parts = []
    for axis in (x, y):
        angle = axis.reshape(-1, 1) * rates
        parts += [angle.sin(), angle.cos()]
    return torch.cat(parts, 1)
