"""Maps from output to input coordinates, both in [-1, 1] over the outer edges: crop, flip and turn alike."""

from __future__ import annotations

import torch
from torch import Tensor


def follow(first: Tensor, second: Tensor) -> Tensor:
    """Compose two maps, `first` applied to the image before `second`. Each (B, 2, 3) output to input."""
    linear, shift = first[:, :, :2], first[:, :, 2:]
    return torch.cat([linear @ second[:, :, :2], linear @ second[:, :, 2:] + shift], -1)
