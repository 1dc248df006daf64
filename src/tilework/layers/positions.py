"""Position embeddings on a grid."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

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


def resize_positions(positions: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Bicubic resize from grid to grid; class tokens before the grid stay. (1, c + old, D) to (1, c + new, D)."""
    if old == new:
        return positions
    first, places = positions.tensor_split([positions.shape[1] - old[0] * old[1]], 1)
    table = places.transpose(1, 2).unflatten(2, old).float()  # (1, D, *old)
    table = F.interpolate(table, new, mode="bicubic", align_corners=False, antialias=False)
    return torch.cat([first, table.flatten(2).transpose(1, 2).to(positions.dtype)], 1)
