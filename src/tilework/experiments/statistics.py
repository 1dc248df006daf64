"""Statistics of runs with several seeds: pooled standard deviation, smallest significant difference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import mean, stdev

import numpy as np

from tilework.evaluation.mcnemar import mcnemar

# Student's t, 97.5 %, for 1 to 30 degrees of freedom; beyond, two terms of its expansion in 1 / degrees
T: tuple[float, ...] = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
T += (2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086)
T += (2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)
NORMAL = 1.960


def student(degrees: int) -> float:
    """Two-sided critical value of Student's t at the 5 % level."""
    if degrees <= len(T):
        return T[degrees - 1]
    z = NORMAL
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def pooled_deviation(rows: Iterable[Sequence[float]]) -> tuple[float, int]:
    """Standard deviation between seeds, pooled over rows with several, and its degrees of freedom; (0, 0) if none."""
    several = [row for row in rows if len(row) > 1]
    degrees = sum(len(row) - 1 for row in several)
    if not degrees:
        return 0.0, 0
    return sqrt(sum((len(row) - 1) * stdev(row) ** 2 for row in several) / degrees), degrees


def resolvable(deviation: float, seeds: int, other_seeds: int, degrees: int | None = None) -> float:
    """Smallest significant difference (5 % level) between the means of two rows.

    degrees: degrees of freedom of the deviation; None: it is known or assumed.
    """
    factor = NORMAL if degrees is None else student(degrees)
    return factor * deviation * sqrt(1 / seeds + 1 / other_seeds)


def paired_difference(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Mean of a - b over shared seeds, and its smallest significant value (paired t-test, 5 % level)."""
    differences = [x - y for x, y in zip(a, b, strict=True)]
    if len(differences) < 2:
        return mean(differences), float("inf")
    return mean(differences), student(len(differences) - 1) * stdev(differences) / sqrt(len(differences))


def paired_deviation(rows: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Standard deviation of runs around their row's mean plus their seed's, and its degrees of freedom; (0, 0) if none.

    rows: of equal length, the same seeds in each. What a seed does to all rows (an easier subset) is taken off.
    """
    if len(rows) < 2 or len(rows[0]) < 2:
        return 0.0, 0
    total, seeds = mean(map(mean, rows)), [mean(values) for values in zip(*rows, strict=True)]
    squares = sum((x - mean(row) - seed + total) ** 2 for row in rows for x, seed in zip(row, seeds, strict=True))
    degrees = (len(rows) - 1) * (len(rows[0]) - 1)
    return sqrt(squares / degrees), degrees


def paired_within_noise(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two classifiers on the same images differ by no more than chance, 95 % (McNemar, 1947).

    one, other: (N,) bool, which images each names right; those that both or neither does say nothing.
    """
    return mcnemar(one, other) > 0.05
