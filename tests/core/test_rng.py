"""Random numbers: known answers, equal bits in numpy and torch, and independence of what keys them."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tilework.core.rng import Draws, philox, purpose_key, step_seed, uniform, words

WORD = 0xFFFFFFFF
# counter, key, answer: kat_vectors of Random123, philox4x32-10
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
# worked out by slow_words below
GOLDEN_FIRST = "94ad5ad3 010da1f0 0cd108f3 0cf13ee7 c3991213"
GOLDEN_SECOND = "12d9a8c0 fa254f4e 9bc6623c fced3911 cd3289b8"
GOLDEN_SEED = 6162406392829630438
INDICES = [0, 1, 2, 1023, WORD, WORD + 1, 2**33 + 5, 2**62 + 12345]


def numbers(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def slow_philox(counter: list[int], key: list[int]) -> list[int]:
    """The round function of the paper, on Python's unbounded integers."""
    x, k = list(counter), list(key)
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * x[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * x[2], 2**32)
        x = [high1 ^ x[1] ^ k[0], low1, high0 ^ x[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return x


def slow_words(seed: int, epoch: int, index: int, purpose: str, count: int) -> list[int]:
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    key = [int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")]
    out: list[int] = []
    for block in range(count):  # more blocks than needed
        out += slow_philox([block, index % 2**32, index // 2**32, epoch], key)
    return out[:count]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
@pytest.mark.parametrize("array", [np.array, torch.tensor])
def test_philox_gives_the_known_answers(array: Any, counter: str, key: str, answer: str) -> None:
    lanes = tuple(array([word]) for word in numbers(counter))
    out = philox(lanes, tuple(numbers(key)))
    assert [int(word[0]) for word in out] == numbers(answer)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_slow_formula_gives_the_known_answers(counter: str, key: str, answer: str) -> None:
    assert slow_philox(numbers(counter), numbers(key)) == numbers(answer)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(-(2**63), 2**63 - 1),
    epoch=st.integers(0, WORD),
    index=st.integers(0, 2**63 - 1),
    count=st.integers(1, 11),
)
def test_words_are_the_slow_formula_in_numpy_and_torch(seed: int, epoch: int, index: int, count: int) -> None:
    expected = slow_words(seed, epoch, index, "crop", count)
    assert words(seed, epoch, np.array([index]), "crop", count)[0].tolist() == expected
    assert words(seed, epoch, torch.tensor([index]), "crop", count)[0].tolist() == expected


def test_numpy_and_torch_give_equal_bits_and_uniforms() -> None:
    index = np.array([*INDICES, *range(1000)])
    for draw in (words, uniform):
        ours, theirs = draw(3, 5, index, "flip", 7), draw(3, 5, torch.from_numpy(index), "flip", 7)
        assert ours.shape == theirs.shape == (len(index), 7)
        assert ours.dtype == theirs.numpy().dtype
        np.testing.assert_array_equal(ours, theirs.numpy())


def test_indices_above_32_bits_have_words_of_their_own() -> None:
    low = np.arange(100)
    rows = [words(0, 0, low + offset, "x", 4) for offset in (0, 2**32, 2**33, 2**40)]
    assert len(np.unique(np.concatenate(rows), axis=0)) == 400


def test_every_key_part_changes_the_words() -> None:
    index = np.arange(50)
    draws = [
        words(seed, epoch, index, purpose, 4) for seed in (0, 1, -1) for epoch in (0, 1) for purpose in ("crop", "flip")
    ]
    assert len(np.unique(np.concatenate(draws), axis=0)) == 3 * 2 * 2 * 50


def test_more_words_begin_with_the_fewer_ones() -> None:
    index = np.arange(9)
    np.testing.assert_array_equal(words(1, 2, index, "x", 10)[:, :3], words(1, 2, index, "x", 3))


def test_a_sample_draws_the_same_in_any_batch() -> None:
    alone = uniform(1, 2, np.array([17]), "x", 4)
    np.testing.assert_array_equal(uniform(1, 2, np.arange(64)[::-1], "x", 4)[63 - 17 : 64 - 17], alone)


def test_uniforms_lie_in_the_unit_interval_with_its_moments() -> None:
    draws = uniform(0, 0, np.arange(50_000), "x", 4)
    assert draws.dtype == np.float32
    assert draws.min() >= 0
    assert draws.max() < 1
    wide = draws.astype(np.float64)
    error = np.sqrt(1 / 12 / wide.size)  # standard error of the mean
    assert abs(wide.mean() - 0.5) < 5 * error
    assert abs(wide.var() - 1 / 12) < 5e-4
    assert np.abs(np.corrcoef(wide.T) - np.eye(4)).max() < 0.03


def test_uniforms_are_the_upper_24_bits() -> None:
    index = np.array(INDICES)
    exact = (words(2, 1, index, "x", 4) >> 8).astype(np.float64) / 2**24
    np.testing.assert_array_equal(uniform(2, 1, index, "x", 4).astype(np.float64), exact)


@pytest.mark.parametrize("high", [1, 2, 7, 1000, 2**20, 2**31, 2**32])
def test_integers_stay_in_range(high: int) -> None:
    index = np.arange(20_000)
    draws = Draws(4, 2, index).integers("pick", high)
    assert draws.shape == (20_000, 1)
    assert draws.min() >= 0
    assert draws.max() < high
    assert abs(draws.mean() / high - (high - 1) / high / 2) < 0.015
    np.testing.assert_array_equal(Draws(4, 2, torch.from_numpy(index)).integers("pick", high).numpy(), draws)


def test_integers_reach_every_value_evenly() -> None:
    counts = np.bincount(Draws(0, 0, np.arange(10_000)).integers("pick", 10, 4).ravel(), minlength=10)
    assert np.abs(counts - 4000).max() < 5 * np.sqrt(4000)


def test_draws_use_their_own_seed_epoch_and_index() -> None:
    index = np.arange(8)
    np.testing.assert_array_equal(Draws(5, 6, index).uniform("x", 3), uniform(5, 6, index, "x", 3))


def test_golden_words() -> None:
    drawn = words(7, 3, np.array([0, 2**33 + 5]), "crop", 5)
    assert [[f"{word:08x}" for word in row] for row in drawn.tolist()] == [
        GOLDEN_FIRST.split(),
        GOLDEN_SECOND.split(),
    ]
    assert drawn.tolist() == [slow_words(7, 3, index, "crop", 5) for index in (0, 2**33 + 5)]


def test_step_seed_is_a_seed_torch_takes() -> None:
    seeds = [step_seed(seed, step, rank) for seed in (0, 2**63) for step in (0, 1, 10**9) for rank in (0, 1, 511)]
    assert len(set(seeds)) == len(seeds)
    for seed in seeds:
        assert 0 <= seed < 2**63
        assert torch.Generator().manual_seed(seed).initial_seed() == seed


def test_step_seed_is_golden() -> None:
    low, high = slow_words(11, 3, 250, "step", 2)
    assert step_seed(11, 250, 3) == low + (high % 2**31) * 2**32 == GOLDEN_SEED


def test_purpose_key_is_the_head_of_a_digest() -> None:
    digest = hashlib.sha256(b"-3/flip").digest()
    assert purpose_key(-3, "flip") == (
        int.from_bytes(digest[:4], "little"),
        int.from_bytes(digest[4:8], "little"),
    )


@pytest.mark.parametrize("module", ["tilework", "tilework.core.rng", "tilework.store"])
def test_import_does_not_need_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit(int('torch' in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_words_of_numpy_indices_do_not_import_torch() -> None:
    code = "import sys, numpy; from tilework.core.rng import uniform; uniform(0, 0, numpy.arange(4), 'x', 3)"
    code += "; sys.exit(int('torch' in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("count", [1, 4, 7, 40])
def test_compiled_words_are_those_of_numpy(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    pytest.importorskip("numba")
    index = np.array([0, 1, 2**31, 2**32 + 5, 2**62, -1])
    monkeypatch.setenv("TILEWORK_KERNELS", "0")
    slow = words(3, 2**33 + 7, index, "test", count)
    monkeypatch.setenv("TILEWORK_KERNELS", "1")
    fast = words(3, 2**33 + 7, index, "test", count)
    assert fast.dtype == slow.dtype
    assert (fast == slow).all()
