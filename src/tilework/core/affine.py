"""Maps from output to input coordinates, both in [-1, 1] over the outer edges: crop, flip and turn alike."""

from __future__ import annotations

import torch
from torch import Tensor


def follow(first: Tensor, second: Tensor) -> Tensor:
    """The map of doing one thing to an image and then another. Each (B, 2, 3) output to input."""
    linear, shift = first[:, :, :2], first[:, :, 2:]
    return torch.cat([linear @ second[:, :, :2], linear @ second[:, :, 2:] + shift], -1)
