"""Emb-Noise: its two parts by their statistics, and who is left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tilework.augment import Augment, Embed, EmbeddingNoise, TokenColour, TokenCrop, apply_all, build_all
from tilework.augment.noise import KeyedNoise, Noise, add_noise, sample_noise
from tilework.core.batch import Batch, Target
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws


def noise(augment: EmbeddingNoise, count: int = 600) -> torch.Tensor:
    target = Target.hard(torch.zeros(count, dtype=torch.int64))
    batch = Batch(torch.zeros(count, 8, 10, 10), target, torch.arange(count), deviation=1.0)
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


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_noise_made_by_a_kernel_is_added_as_its_values_are(layout: torch.memory_format) -> None:
    pytest.importorskip("numba")
    x = torch.randn(5, 3, 4, 6).contiguous(memory_format=layout)
    p = sample_noise(torch.tensor([True, False, True, True, False]), (3, 4, 6), 0.5)
    assert isinstance(p, KeyedNoise)
    out, values = add_noise(x, p), Noise(p.rows, p.values)
    torch.testing.assert_close(out, add_noise(x, values))
    assert torch.equal(add_noise(x, p), out), "the seed replays it"
    learnt = x.clone().requires_grad_()
    torch.testing.assert_close(add_noise(learnt, p), out)
    add_noise(learnt, p).sum().backward()
    assert (learnt.grad == 1).all()


RAW = np.random.default_rng(0).normal(0.4, 1.1, (300, 16)) * np.linspace(0.5, 2, 16) + np.linspace(-1, 2, 16)
UNIT = RAW / np.linalg.norm(RAW, axis=1, keepdims=True)
BOOKS = {
    "raw": Codebook.of(RAW),
    "unit length": Codebook.of(UNIT),
    "large": Codebook.of(RAW * 50),
    "learnt": Codebook.of(UNIT, RAW[::-1] * 3),
}


def strength(steps: list[Augment], book: Codebook) -> float:
    """Variance of what the last step adds beside that of the codes as they reach it, channel by channel."""
    rng = np.random.default_rng(1)
    ids = torch.from_numpy(rng.integers(0, len(book), (1500, 6, 6), dtype=np.int32))
    batch = Batch(ids, Target.hard(torch.zeros(1500, dtype=torch.int64)), torch.arange(1500))
    *before, last = build_all(steps, book)
    torch.manual_seed(0)
    clean = apply_all(before, batch, Draws(0, 0, batch.index))
    added = apply_all([last], clean, Draws(0, 0, batch.index)).x - clean.x
    seen = build_all([Embed(getattr(steps[0], "standardise", False))], book)
    codes = apply_all(seen, batch, Draws(0, 0, batch.index)).x
    return float(added.var((0, 2, 3)).mean() / codes.var((0, 2, 3)).mean())


@pytest.mark.parametrize("book", BOOKS)
@pytest.mark.parametrize("standardise", [False, True])
@pytest.mark.parametrize("noise", [EmbeddingNoise(1.0), TokenColour(1.0, 0.0)])
@pytest.mark.parametrize("first", [Embed, TokenCrop])
def test_noise_has_twice_the_variance_of_the_codes(book: str, standardise: bool, noise: Any, first: Any) -> None:
    assert strength([first(standardise=standardise), noise], BOOKS[book]) == pytest.approx(2.0, abs=0.1)


def test_noise_of_several_codes_at_a_position_has_their_units() -> None:
    """Whatever rare numbers their table lists."""
    ids = torch.randint(0, 300, (400, 16, 6, 6), dtype=torch.int32)
    batch = Batch(ids, Target.hard(torch.zeros(400, dtype=torch.int64)), torch.arange(400))
    embed, noise = build_all([Embed(), EmbeddingNoise(1.0)], BOOKS["large"])
    clean = apply_all([embed], batch, Draws(0, 0, batch.index))
    assert (apply_all([noise], clean, Draws(0, 0, batch.index)).x - clean.x).var() == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("noise", [EmbeddingNoise(), TokenColour()])
def test_noise_of_no_known_strength_is_refused(noise: Any) -> None:
    batch = Batch(torch.zeros(4, 2, 3, 3), Target.hard(torch.zeros(4, dtype=torch.int64)), torch.arange(4))
    with pytest.raises(ConfigError, match="put 'embed' before it"):
        apply_all([noise], batch, Draws(0, 0, batch.index))
