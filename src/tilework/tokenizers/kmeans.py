"""k-means on the device (Lloyd, 1982) with k-means++ seeds (Arthur and Vassilvitskii, 2007).

P points | C dims | K centres
"""

from __future__ import annotations

import torch
from torch import Tensor


def kmeans(points: Tensor, count: int, rounds: int = 10) -> Tensor:
    """Centres of `count` clusters; empty ones move to the points furthest from theirs. points: (P, C); (K, C)."""
    centres = seeds(points, count)
    for _ in range(rounds):
        distance, owner = squared_distances(points, centres).min(1)  # (P,)
        members = torch.zeros(count, device=points.device).index_add_(0, owner, torch.ones_like(distance))
        sums = torch.zeros_like(centres).index_add_(0, owner, points)
        empty = members == 0
        centres = torch.where(empty[:, None], centres, sums / members.clamp(min=1)[:, None])
        lonely = distance.topk(min(int(empty.sum()), len(points))).indices
        centres[empty.nonzero()[: len(lonely), 0]] = points[lonely]
    return centres


def seeds(points: Tensor, count: int) -> Tensor:
    """Points picked one by one, each with a probability that grows with its distance to those before. (K, C)."""
    centre = points.new_empty(count, points.shape[1])
    centre[0] = points[torch.randint(len(points), (1,), device=points.device)[0]]
    apart = (points - centre[0]).square_()  # (P, C), written over: fresh ones would scatter the heap, gigabytes of it
    distance = apart.sum(1)  # (P,)
    for number in range(1, count):
        picked = torch.multinomial(distance + 1e-20, 1)[0]  # once all points are taken, any may come again
        centre[number] = points[picked]
        torch.sub(points, centre[number], out=apart)
        torch.minimum(distance, apart.square_().sum(1), out=distance)
    spare = torch.arange(count, device=points.device)[:, None] >= len(points)  # repeats stand a little apart
    return centre + spare * 0.01 * points.std(correction=0) * torch.randn_like(centre)


def squared_distances(points: Tensor, centres: Tensor) -> Tensor:
    """(P, C) and (K, C) to (P, K)."""
    return points.square().sum(1, keepdim=True) - 2 * points @ centres.T + centres.square().sum(1)
