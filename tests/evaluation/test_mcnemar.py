"""McNemar's exact test, against a case by hand and scipy's binomial test."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tilework.evaluation.mcnemar import mcnemar


def test_by_hand() -> None:
    a, b = np.array([True] * 9 + [False]), np.array([False] * 9 + [False])
    assert mcnemar(a, b) == pytest.approx(2 / 2**9)
    assert mcnemar(a, a) == 1.0


@pytest.mark.parametrize(("ours", "theirs"), [(3, 12), (8, 10), (0, 4), (40, 61)])
def test_against_the_binomial_test(ours: int, theirs: int) -> None:
    one, other = np.zeros(200, bool), np.zeros(200, bool)
    one[:ours], other[ours : ours + theirs] = True, True
    assert mcnemar(one, other) == pytest.approx(stats.binomtest(ours, ours + theirs).pvalue)
