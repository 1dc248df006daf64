"""ColorAdapt against eq. 4 written as loops; who gets which colours."""

from __future__ import annotations

import pytest
import torch

from tilework.augment import apply_all
from tilework.augment.color_adapt import TokenColour, adapt_colour
from tilework.core.batch import Batch, Target
from tilework.core.rng import Draws


def make_batch(count: int = 6) -> Batch:
    x = torch.randn(count, 4, 5, 7, generator=torch.Generator().manual_seed(0)) * 3 + 1
    return Batch(x, Target.hard(torch.zeros(count, dtype=torch.int64)), torch.arange(count))


def test_equation_by_channel() -> None:
    one, two = make_batch().x, make_batch().x.flip(0) * 2 - 1
    out = adapt_colour(one, two)
    for b in range(6):
        for c in range(4):
            mean, deviation = one[b, c].mean(), one[b, c].std(correction=0)
            expected = two[b, c].std(correction=0) * (one[b, c] - mean) / deviation + two[b, c].mean()
            assert torch.allclose(out[b, c], expected, atol=1e-5)
    assert torch.allclose(out.mean((2, 3)), two.mean((2, 3)), atol=1e-5)
    assert torch.allclose(out.std((2, 3)), two.std((2, 3)), atol=1e-5)


def test_own_colours_change_nothing() -> None:
    x = make_batch().x
    assert torch.allclose(adapt_colour(x, x), x, atol=1e-5)


def test_constant_channel_takes_the_mean_and_stays_finite() -> None:
    x = torch.full((1, 1, 3, 3), 7.0)
    assert torch.allclose(adapt_colour(x, torch.arange(9.0).view(1, 1, 3, 3)), torch.full((1, 1, 3, 3), 4.0))


def test_choices_exclude_each_other() -> None:
    batch = make_batch(3000)
    torch.manual_seed(0)
    p = TokenColour().sample(Draws(0, 0, batch.index), batch)
    noisy = torch.zeros(3000, dtype=torch.bool)
    noisy[p.noise.rows] = True
    assert not (noisy & p.adapted).any()
    assert noisy.float().mean() == pytest.approx(0.5, abs=0.03)
    assert p.adapted.float().mean() == pytest.approx(0.25, abs=0.03)


def test_partner_is_the_neighbour_before_any_change() -> None:
    batch = make_batch()
    out = apply_all([TokenColour(noise=0.0, adapt=1.0)], batch, Draws(0, 0, batch.index)).x
    for i in range(6):
        assert torch.allclose(out[i : i + 1], adapt_colour(batch.x[i : i + 1], batch.x[i - 1][None]), atol=1e-5)


def test_off_changes_nothing() -> None:
    batch = make_batch()
    assert torch.equal(apply_all([TokenColour(0.0, 0.0)], batch, Draws(0, 0, batch.index)).x, batch.x)


def test_more_than_certain_is_refused() -> None:
    with pytest.raises(ValueError, match="exclusive"):
        TokenColour(noise=0.8, adapt=0.3)
