"""k-means: quality, separated clusters, few points, no empty clusters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tilework.tokenizers.kmeans import kmeans, squared_distances


def error(points: Tensor, centres: Tensor) -> float:
    """Mean squared distance of the points to their nearest centre."""
    return torch.cdist(points, centres).square().min(1).values.mean().item()


def owners(points: Tensor, centres: Tensor) -> int:
    """Number of centres that are the nearest of some point."""
    return len(torch.cdist(points, centres).argmin(1).unique())


def separated(clusters: int, seed: int) -> tuple[Tensor, Tensor]:
    """Far apart centres, (K, 4), and fifty points close to each, (50 K, 4)."""
    g = torch.Generator().manual_seed(seed)
    grid = torch.cartesian_prod(*[torch.arange(2.0)] * 4)[torch.randperm(16, generator=g)[:clusters]] * 20
    return grid, (grid[:, None] + 0.1 * torch.randn(clusters, 50, 4, generator=g)).reshape(-1, 4)


def test_distances_equal_a_loop() -> None:
    g = torch.Generator().manual_seed(0)
    points, centres = torch.randn(5, 3, generator=g), torch.randn(4, 3, generator=g)
    slow = torch.tensor([[((p - c) ** 2).sum().item() for c in centres] for p in points])
    assert torch.allclose(squared_distances(points, centres), slow, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_beats_random_centres(seed: int) -> None:
    torch.manual_seed(seed)
    points = torch.randn(1000, 4)
    centres = kmeans(points, 20)
    assert centres.shape == (20, 4)
    assert error(points, centres) < 0.85 * error(points, points[torch.randperm(1000)[:20]])


def test_more_rounds_do_not_make_it_worse() -> None:
    points = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
    errors = []
    for rounds in (0, 1, 3, 10):
        torch.manual_seed(0)
        errors.append(error(points, kmeans(points, 16, rounds)))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.9 * errors[0]


def test_one_centre_is_the_mean() -> None:
    points = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(kmeans(points, 1), points.mean(0, keepdim=True), atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_recovers_separated_clusters(seed: int) -> None:
    true, points = separated(8, seed)
    torch.manual_seed(seed)
    centres = kmeans(points, 8)
    assert torch.cdist(true, centres).min(1).values.max() < 0.2


@pytest.mark.parametrize("count", [2, 3, 10])
def test_fewer_points_than_centres(count: int) -> None:
    torch.manual_seed(0)
    points = torch.randn(count, 4)
    centres = kmeans(points, 12)
    assert centres.shape == (12, 4)
    assert torch.isfinite(centres).all()
    assert error(points, centres) < 1e-6


def test_single_point() -> None:
    torch.manual_seed(0)
    point = torch.randn(1, 4)
    centres = kmeans(point, 3)
    assert torch.isfinite(centres).all()
    assert error(point, centres) < 1e-6


@pytest.mark.parametrize("seed", range(10))
def test_no_cluster_stays_empty(seed: int) -> None:
    torch.manual_seed(seed)
    points = torch.randn(60, 4)
    assert owners(points, kmeans(points, 40)) == 40


def test_centres_that_start_empty_are_moved() -> None:
    torch.manual_seed(0)
    crowd, far = torch.zeros(200, 2), torch.tensor([[50.0, 0.0], [0.0, 50.0]])
    points = torch.cat([crowd, far])  # random seeds nearly always fall into the crowd
    assert error(points, kmeans(points, 3)) < 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_repeated_points_leave_no_cluster_empty(seed: int) -> None:
    torch.manual_seed(seed)
    points = torch.randn(32, 4).repeat(20, 1)  # flat patches of images give the same vector again and again
    assert owners(points, kmeans(points, 32)) == 32


def test_points_are_left_unchanged() -> None:
    torch.manual_seed(0)
    points = torch.randn(50, 3)
    before = points.clone()
    kmeans(points, 10)
    assert torch.equal(points, before)
