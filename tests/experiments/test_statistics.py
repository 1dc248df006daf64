"""Spread and resolution, against scipy and simulated tables."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tilework.experiments.statistics import (
    paired_difference,
    paired_within_noise,
    pooled_deviation,
    resolvable,
    student,
)


@pytest.mark.parametrize("degrees", [*range(1, 31), 31, 100, 1000])
def test_student_against_scipy(degrees: int) -> None:
    assert student(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=3e-4)


@pytest.mark.parametrize(("ours", "theirs"), [(3, 12), (8, 10), (0, 0), (0, 3), (0, 4), (40, 60), (40, 61)])
def test_paired_noise_against_the_binomial_test(ours: int, theirs: int) -> None:
    """McNemar's test is exact: scipy's binomial test of the images that one alone names right."""
    one, other = np.zeros(200, bool), np.zeros(200, bool)
    one[:ours], other[ours : ours + theirs] = True, True
    one[150:], other[150:] = True, True  # right by both: of no weight
    chance = stats.binomtest(ours, ours + theirs).pvalue if ours + theirs else 1.0
    assert paired_within_noise(one, other) == paired_within_noise(other, one) == (chance > 0.05)


def test_pooled_deviation_by_hand() -> None:
    deviation, degrees = pooled_deviation([[1.0, 3.0], [5.0], [2.0, 2.0, 5.0]])
    assert degrees == 3
    assert deviation == pytest.approx(((2 + 6) / 3) ** 0.5)


def test_no_row_with_several_seeds_has_no_deviation() -> None:
    assert pooled_deviation([[1.0], [2.0]]) == (0.0, 0)


def test_differences_beyond_the_resolvable_are_rare_by_chance() -> None:
    rng = np.random.default_rng(0)
    false = 0
    for _ in range(4000):
        rows = rng.normal(size=(3, 3)).tolist()
        deviation, degrees = pooled_deviation(rows)
        false += abs(np.mean(rows[0]) - np.mean(rows[1])) > resolvable(deviation, 3, 3, degrees)
    assert false / 4000 == pytest.approx(0.05, abs=0.012)


def test_known_deviation_uses_the_normal_distribution() -> None:
    assert resolvable(0.01, 1, 1) == pytest.approx(1.96 * 0.01 * 2**0.5, rel=1e-4)


def test_paired_difference_against_scipy() -> None:
    a, b = [0.5, 0.6, 0.4, 0.55], [0.45, 0.5, 0.42, 0.5]
    difference, smallest = paired_difference(a, b)
    low, high = stats.ttest_rel(a, b).confidence_interval()
    assert difference - smallest == pytest.approx(low, abs=1e-4)
    assert difference + smallest == pytest.approx(high, abs=1e-4)


def test_one_pair_resolves_nothing() -> None:
    assert paired_difference([1.0], [0.5]) == (0.5, float("inf"))
