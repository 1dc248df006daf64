"""How label shares follow tokens through operators on a grid (TL-Align, table 2): fp32, without gradient.

B batch | h, w grid | N = h w | S sources
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def pool_shares(share: Tensor, grid: tuple[int, int], kernel: int, stride: int, padding: int = 0) -> Tensor:
    """Mean of the positions in each window, what lies beyond the border left out. (B, N, S) to (B, N', S)."""
    with torch.no_grad(), torch.autocast(share.device.type, enabled=False):
        maps = share.transpose(1, 2).unflatten(2, grid)  # (B, S, h, w)
        maps = F.avg_pool2d(maps, kernel, stride, padding, count_include_pad=False)
        return maps.flatten(2).transpose(1, 2)


def convolve_shares(share: Tensor, grid: tuple[int, int], weight: Tensor) -> Tensor:
    """Mean of the positions around each, by the size of a depthwise convolution's weights. (B, N, S) to (B, N, S).

    weight: (D, 1, k, k); channels count alike, and what lies beyond the border not at all.
    """
    with torch.no_grad(), torch.autocast(share.device.type, enabled=False):
        kernel = weight.float().abs().mean(0, keepdim=True) + 1e-12  # (1, 1, k, k); all alike if all are zero
        maps = share.transpose(1, 2).reshape(-1, 1, *grid)  # (B S, 1, h, w)
        reach = F.conv2d(torch.ones_like(maps[:1]), kernel, padding="same")
        maps = F.conv2d(maps, kernel, padding="same") / reach
        return maps.reshape(share.shape[0], share.shape[2], -1).transpose(1, 2)
