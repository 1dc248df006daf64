"""A network and images small enough to attack in tests."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EPS = {"linf": 0.02, "l2": 0.25}


def small_net() -> nn.Module:
    """Five classes of images of 8x8 px, its weights a function of nothing."""
    generator = torch.Generator().manual_seed(5)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.GELU(), nn.Flatten(), nn.Linear(8 * 16, 5))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * (0.4 if p.ndim > 1 else 0.1))
    return net.eval().requires_grad_(False)


def small_images() -> tuple[Tensor, Tensor]:
    """Images, and directions of starts."""
    generator = torch.Generator().manual_seed(6)
    x = torch.rand(12, 3, 8, 8, generator=generator)
    return x, torch.rand(x.shape, generator=generator) * 2 - 1
