"""ColorAdapt against eq. 4 written as loops; who gets which colours; noise of some, colours of others."""

from __future__ import annotations

import warnings

import pytest
import torch

from tilework.augment import apply_all
from tilework.augment.color_adapt import Colours, TokenColour, adapt_colour
from tilework.augment.noise import Noise
from tilework.core.batch import Batch, Target
from tilework.core.rng import Draws


def make_batch(count: int = 6) -> Batch:
    x = torch.randn(count, 4, 5, 7, generator=torch.Generator().manual_seed(0)) * 3 + 1
    return Batch(x, Target.hard(torch.zeros(count, dtype=torch.int64)), torch.arange(count), deviation=0.5)


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


def test_what_is_drawn_depends_on_the_shape_alone() -> None:
    """So that colours can be drawn before there is a map."""
    batch, draws = make_batch(40), Draws(0, 0, torch.arange(40))
    torch.manual_seed(0)
    p = TokenColour().sample(draws, batch)
    torch.manual_seed(0)
    again = TokenColour().draw(draws, (4, 5, 7), 0.5)
    assert p.noise.values.shape == (len(p.noise.rows), 4, 5, 7)
    assert 0 < len(p.noise.rows) < 40
    assert torch.equal(p.noise.rows, again.noise.rows)
    assert torch.equal(p.noise.values, again.noise.values)
    assert torch.equal(p.adapted, again.adapted)


def test_change_by_a_loop() -> None:
    """Noise for some, the neighbour's colours before any change for others, nothing for the rest."""
    batch = make_batch(6)
    noise = torch.randn(2, 4, 5, 7, generator=torch.Generator().manual_seed(1))
    p = Colours(Noise(torch.tensor([0, 4]), noise), torch.tensor([False, True, False, False, False, True]))
    out = TokenColour().change(batch.x, p)
    for i in range(6):
        expected = batch.x[i]
        if i in (0, 4):
            expected = expected + noise[i // 4]
        elif i in (1, 5):  # their neighbours are those with noise
            expected = adapt_colour(expected[None], batch.x[i - 1][None])[0]
        assert torch.allclose(out[i], expected, atol=1e-5)
    assert torch.equal(TokenColour().apply(batch, p).x, out)
    assert torch.equal(batch.x, make_batch(6).x), "not in place"


def test_partner_is_the_neighbour_before_any_change() -> None:
    batch = make_batch()
    out = apply_all([TokenColour(noise=0.0, adapt=1.0)], batch, Draws(0, 0, batch.index)).x
    for i in range(6):
        assert torch.allclose(out[i : i + 1], adapt_colour(batch.x[i : i + 1], batch.x[i - 1][None]), atol=1e-5)


def test_alone_in_a_batch_a_sample_keeps_its_colours() -> None:
    batch = make_batch(1)
    out = apply_all([TokenColour(noise=0.0, adapt=1.0)], batch, Draws(0, 0, batch.index)).x
    assert torch.allclose(out, batch.x, atol=1e-5)


def test_off_changes_nothing() -> None:
    batch = make_batch()
    assert torch.equal(apply_all([TokenColour(0.0, 0.0)], batch, Draws(0, 0, batch.index)).x, batch.x)


@pytest.mark.parametrize(("noise", "adapt"), [(0.8, 0.3), (-0.1, 0.5), (0.5, -0.1)])
def test_what_is_no_probability_is_refused(noise: float, adapt: float) -> None:
    with pytest.raises(ValueError, match="exclusive"):
        TokenColour(noise, adapt)


def test_nothing_to_colour_is_no_reason_to_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one = TokenColour(0.3, 0.3)
        drawn = one.draw(Draws(0, 0, torch.arange(0)), (5, 8, 8), 1.0)
        assert one.change(torch.empty(0, 5, 8, 8), drawn).shape[0] == 0
