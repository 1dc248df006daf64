"""Label shares through windows and convolutions, place by place."""

from __future__ import annotations

import pytest
import torch

from tilework.layers.shares import convolve_shares, pool_shares

GRID = (4, 6)


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, 2, 0), (3, 2, 1)])
def test_pooled_shares_are_means_of_the_places_that_exist(kernel: int, stride: int, padding: int) -> None:
    share = torch.rand(2, 24, 3)
    pooled = pool_shares(share, GRID, kernel, stride, padding)
    assert pooled.shape == (2, 6, 3)
    for place in range(6):
        top, left = place // 3 * stride - padding, place % 3 * stride - padding
        rows = [r for r in range(top, top + kernel) if 0 <= r < 4]
        inside = [6 * r + c for r in rows for c in range(left, left + kernel) if 0 <= c < 6]
        assert torch.allclose(pooled[:, place], share[:, inside].mean(1), atol=1e-6)


def test_convolved_shares_weigh_places_by_the_size_of_the_kernel() -> None:
    share, weight = torch.rand(2, 24, 3), torch.randn(5, 1, 3, 3, requires_grad=True)
    mixed = convolve_shares(share, GRID, weight)
    assert not mixed.requires_grad
    size = weight.detach().abs().mean((0, 1))
    for place in range(24):
        total, weights = torch.zeros(2, 3), 0.0
        for down in (-1, 0, 1):
            for across in (-1, 0, 1):
                r, c = place // 6 + down, place % 6 + across
                if 0 <= r < 4 and 0 <= c < 6:
                    total += size[down + 1, across + 1] * share[:, 6 * r + c]
                    weights += size[down + 1, across + 1].item()
        assert torch.allclose(mixed[:, place], total / weights, atol=1e-6)


def test_a_kernel_of_zeros_means_all_alike() -> None:
    share = torch.rand(1, 24, 2)
    wanted = convolve_shares(share, GRID, torch.ones(1, 1, 3, 3))
    assert torch.allclose(convolve_shares(share, GRID, torch.zeros(1, 1, 3, 3)), wanted, atol=1e-5)
