"""Emb-Noise: its two parts by their statistics, and who is left alone."""

from __future__ import annotations

import pytest
import torch

from tilework.augment import EmbeddingNoise, apply_all
from tilework.augment.noise import Noise, add_noise, sample_noise
from tilework.core.batch import Batch, Target
from tilework.core.rng import Draws


def noise(augment: EmbeddingNoise, count: int = 600) -> torch.Tensor:
    batch = Batch(
        torch.zeros(count, 8, 10, 10), Target.hard(torch.zeros(count, dtype=torch.int64)), torch.arange(count)
    )
    torch.manual_seed(0)
    return apply_all([augment], batch, Draws(0, 0, batch.index)).x


def test_off_changes_nothing() -> None:
    assert (noise(EmbeddingNoise(probability=0)) == 0).all()


def test_half_of_the_samples_by_default() -> None:
    chosen = (noise(EmbeddingNoise()) != 0).flatten(1).any(1)
    assert chosen.float().mean() == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_variance_is_one_part_per_channel_and_one_per_element(scale: float) -> None:
    x = noise(EmbeddingNoise(probability=1, scale=scale))
    per_channel = x.mean((2, 3))  # n_c, plus the mean of 100 elements
    assert per_channel.var() == pytest.approx(scale**2 * (1 + 1 / 100), rel=0.06)
    assert (x - per_channel[..., None, None]).var() == pytest.approx(scale**2 * 99 / 100, rel=0.02)
    assert x.mean() == pytest.approx(0, abs=0.05 * scale)


def test_input_is_added_to() -> None:
    batch = Batch(torch.randn(4, 2, 3, 3), Target.hard(torch.zeros(4, dtype=torch.int64)), torch.arange(4))
    p = Noise(torch.tensor([3, 1]), torch.randn(2, 2, 3, 3))
    out = EmbeddingNoise().apply(batch, p).x
    for i, noise in ((3, p.values[0]), (1, p.values[1])):
        assert torch.equal(out[i], batch.x[i] + noise)
    assert torch.equal(out[::2], batch.x[::2])


@pytest.mark.parametrize("scale", [1.0, 0.25, 0.0])
def test_noise_is_drawn_for_the_chosen_alone(scale: float) -> None:
    chosen = torch.tensor([True, False, False, True, True])
    torch.manual_seed(0)
    p = sample_noise(chosen, (2, 3, 4), scale)
    assert p.rows.tolist() == [0, 3, 4]
    assert p.values.shape == (3, 2, 3, 4)
    torch.manual_seed(0)
    torch.testing.assert_close(p.values, sample_noise(chosen, (2, 3, 4)).values * scale)
    assert (p.values == 0).all() == (scale == 0)


@pytest.mark.parametrize("count", [0, 4])
def test_none_may_be_chosen(count: int) -> None:
    p = sample_noise(torch.zeros(count, dtype=torch.bool), (2, 3, 4))
    assert p.values.shape == (0, 2, 3, 4)
    x = torch.randn(count, 2, 3, 4)
    assert torch.equal(add_noise(x, p), x)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_noise_is_added_however_the_map_lies_in_memory(layout: torch.memory_format) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, 2, 4, 5, generator=g).contiguous(memory_format=layout)
    before, p = x.clone(), Noise(torch.tensor([2]), torch.randn(1, 2, 4, 5, generator=g))
    out = add_noise(x, p)
    assert torch.equal(out, torch.stack([x[0], x[1], x[2] + p.values[0]]))
    assert torch.equal(x, before), "not in place"
