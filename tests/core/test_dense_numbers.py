"""Dense random numbers of kernels against xoshiro128++ and Box-Muller written the slow way, in Python's own numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("numba")

from tilework.core.kernels import add_channel_noise, uniforms
from tilework.core.kernels.dense import LANES, PART
from tilework.core.rng import philox

SEED = np.array([0x12345678, 0x9ABCDEF0])
WORD = 0xFFFFFFFF


def rotated(x: int, by: int) -> int:
    return (x << by | x >> 32 - by) & WORD


def next_word(s: list[int]) -> int:
    """xoshiro128++ as Blackman and Vigna print it."""
    result = rotated(s[0] + s[3] & WORD, 7) + s[0] & WORD
    t = s[1] << 9 & WORD
    s[2] ^= s[0]
    s[3] ^= s[1]
    s[1] ^= s[2]
    s[0] ^= s[3]
    s[2] ^= t
    s[3] = rotated(s[3], 11)
    return result


def slow_words(number: int, count: int) -> list[int]:
    key = (int(SEED[0]), int(SEED[1]))
    lanes = [list(philox((number, lane, 0, 0), key)) for lane in range(LANES)]
    return [next_word(lanes[i % LANES]) for i in range(count)]


def slow_normals(number: int, parts: int) -> list[float]:
    """2 PART normals for each part: r cos a of all, then r sin a of all."""
    drawn, out = slow_words(number, 2 * PART * parts), []
    for part in range(parts):
        first, second = np.split(np.array(drawn[2 * PART * part : 2 * PART * (part + 1)]), 2)
        radius = [math.sqrt(-2 * math.log((u >> 8) * 2**-24 + 2**-25)) for u in first.tolist()]
        angle = [(a - (1 << 32 if a >> 31 else 0)) * math.pi * 2**-31 for a in second.tolist()]
        out += [r * math.cos(a) for r, a in zip(radius, angle, strict=True)]
        out += [r * math.sin(a) for r, a in zip(radius, angle, strict=True)]
    return out


def noise(numbers: list[int], places: int, channels: int, scale: float = 1.0) -> np.ndarray:
    out = np.empty((len(numbers), places, channels), np.float32)
    scales = np.full(len(numbers), scale, np.float32)
    add_channel_noise(np.zeros_like(out), np.array(numbers), scales, out, SEED)
    return out


def test_xoshiro_gives_its_published_words() -> None:
    """The test vector of rand_xoshiro (Rust), from the authors' C code: state 1, 2, 3, 4."""
    state = [1, 2, 3, 4]
    assert [next_word(state) for _ in range(4)] == [641, 1573767, 3222811527, 3517856514]


def test_uniforms_are_the_top_bits_of_the_words() -> None:
    out = np.empty((3, PART + 70), np.float32)
    uniforms(np.array([5, 6, 7]), np.array([True, False, True]), out, SEED)
    for row, number in ((0, 5), (2, 7)):
        assert out[row].tolist() == [(word >> 8) * 2**-24 for word in slow_words(number, PART + 70)]
    assert (out[1] == 1).all()


@pytest.mark.parametrize(("places", "channels"), [(300, 5), (3, 1), (2, 600)])
def test_noise_is_a_normal_of_the_channel_and_one_of_the_element(places: int, channels: int) -> None:
    skipped = -(-channels // PART)  # channels are drawn first, one part for each PART of them
    drawn = slow_normals(9, skipped + -(-places * channels // (2 * PART)))
    common = [drawn[k // PART * 2 * PART + k % PART] for k in range(channels)]
    dense = np.array(drawn[2 * PART * skipped :][: places * channels]).reshape(places, channels)
    np.testing.assert_allclose(noise([9], places, channels, 0.5)[0], 0.5 * (dense + common), atol=1e-5)


def test_a_sample_has_its_own_numbers_whatever_is_beside_it() -> None:
    together = noise([4, 11], 50, 7)
    assert (together[1] == noise([11], 50, 7)[0]).all()
    assert not (together[0] == together[1]).any()


def test_a_scale_of_zero_copies() -> None:
    x = np.random.default_rng(0).normal(size=(2, 6, 3)).astype(np.float32)
    out = np.empty_like(x)
    add_channel_noise(x, np.arange(2), np.array([0, 1], np.float32), out, SEED)
    assert (out[0] == x[0]).all()
    np.testing.assert_allclose(out[1], x[1] + noise([1], 6, 3)[0], atol=1e-6)


def test_normals_are_standard_and_independent() -> None:
    """Moments, Kolmogorov's distance (below 1.95 / sqrt(n) in 999 of 1,000 draws), neighbours, halves of a pair."""
    x = noise(list(range(40)), 5001, 1)[:, :, 0].astype(np.float64)
    x = x - x.mean(1, keepdims=True)  # n_c, and what the mean of n adds to it
    flat = np.sort(x.ravel())
    expected = np.array([0.5 * math.erfc(-z / math.sqrt(2)) for z in flat.tolist()])
    assert np.abs(expected - np.arange(len(flat)) / len(flat)).max() < 1.95 / len(flat) ** 0.5
    assert flat.var() == pytest.approx(1, abs=0.02)
    assert (flat**4).mean() == pytest.approx(3, abs=0.1)
    for step in (1, LANES, PART):
        assert abs(np.corrcoef(x[:, :-step].ravel(), x[:, step:].ravel())[0, 1]) < 0.01
        assert abs(np.corrcoef(x[:, :-step].ravel() ** 2, x[:, step:].ravel() ** 2)[0, 1]) < 0.01
