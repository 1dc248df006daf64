"""Square attack: what holds for every search, and the size of squares as published."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from small_attacks import EPS, small_images, small_net
from tilework.core.rng import Draws
from tilework.evaluation.square import side_at, square


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_it_stays_in_the_ball_and_does_not_depend_on_batch_or_order(norm: str) -> None:
    net, (x, _) = small_net(), small_images()
    y = net(x).argmax(1)
    whole = square(net, x, y, EPS[norm], Draws(3, 0, torch.arange(12)), 30, norm)  # type: ignore[arg-type]
    away = (whole.images - x).flatten(1)
    assert (away.abs().amax(1) if norm == "linf" else away.norm(dim=1)).max() <= EPS[norm] + 1e-6
    assert 0 <= whole.images.min() <= whole.images.max() <= 1
    some = torch.tensor([9, 0, 4])
    part = square(net, x[some], y[some], EPS[norm], Draws(3, 0, some), 30, norm)  # type: ignore[arg-type]
    assert torch.allclose(part.images, whole.images[some], atol=1e-6)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_more_queries_and_larger_radii_break_more(norm: str) -> None:
    net, (x, _) = small_net(), small_images()
    y, draws = net(x).argmax(1), Draws(0, 0, torch.arange(12))
    left = [int(square(net, x, y, 2 * EPS[norm], draws, q, norm).stands.sum()) for q in (1, 20, 200)]  # type: ignore[arg-type]
    assert left[0] >= left[1] >= left[2]
    assert left[2] < 12


def test_a_linear_model_is_broken_where_stripes_are_the_strongest_change() -> None:
    w = torch.zeros(3, 4, 4)
    w[:, :, ::2], w[:, :, 1::2] = 1.0, -1.0  # weights by column: no change is stronger than the right stripes

    def net(a: Tensor) -> Tensor:
        s = (a * w).sum((1, 2, 3))
        return torch.stack([s, -s], 1)

    x = torch.full((1, 3, 4, 4), 0.5)
    x[..., ::2] += 0.02  # margin 2 * 24 * 0.02 = 0.96; eps moves it by at most 2 * 48 * eps: 0.01 is the bound
    y = torch.zeros(1, dtype=torch.int64)
    draws = Draws(0, 0, torch.arange(1))
    assert not square(net, x, y, 0.02, draws, 300).stands.item()
    assert square(net, x, y, 0.009, draws, 300).stands.item()


def test_squares_shrink_as_in_autoattack() -> None:
    sides = [round(side_at(q, 224, 224)) for q in (0, 10, 11, 51, 201, 4999)]
    assert sides == [200, 200, 142, 100, 71, 18]
