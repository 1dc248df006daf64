"""k-means on the device (Lloyd, 1982), seeded as k-means++ would by distance to a random subset.

P points | C dims | K centres
"""

from __future__ import annotations

import torch
from torch import Tensor


def kmeans(points: Tensor, count: int, rounds: int = 10) -> Tensor:
    """Centres of `count` clusters; empty ones move to the points furthest from theirs. points: (P, C); (K, C)."""
    chosen = torch.randperm(len(points), device=points.device)[:count]
    centres = points[chosen]
    if len(centres) < count:  # fewer points than centres: repeat some with a little noise
        extra = points[torch.randint(len(points), (count - len(centres),), device=points.device)]
        centres = torch.cat([centres, extra + 0.01 * points.std() * torch.randn_like(extra)])
    for _ in range(rounds):
        distance, owner = squared_distances(points, centres).min(1)  # (P,)
        members = torch.zeros(count, device=points.device).index_add_(0, owner, torch.ones_like(distance))
        sums = torch.zeros_like(centres).index_add_(0, owner, points)
        empty = members == 0
        centres = torch.where(empty[:, None], centres, sums / members.clamp(min=1)[:, None])
        lonely = distance.topk(min(int(empty.sum()), len(points))).indices
        centres[empty.nonzero()[: len(lonely), 0]] = points[lonely]
    return centres


def squared_distances(points: Tensor, centres: Tensor) -> Tensor:
    """(P, C) and (K, C) to (P, K)."""
    return points.square().sum(1, keepdim=True) - 2 * points @ centres.T + centres.square().sum(1)
