"""Bounds of settings: numbers that cannot be are refused by the settings that have them."""

from __future__ import annotations

from math import inf
from typing import Any


def check_shares(settings: Any, *names: str) -> None:
    """Probabilities and shares: from 0 to 1."""
    for name in names:
        if not 0 <= getattr(settings, name) <= 1:  # nor is NaN
            raise ValueError(f"{name} is {getattr(settings, name)} but must lie between 0 and 1")


def check_below_one(settings: Any, *names: str) -> None:
    """Rates of smoothing and dropping: from 0 to below 1."""
    for name in names:
        if not 0 <= getattr(settings, name) < 1:
            raise ValueError(f"{name} is {getattr(settings, name)} but must lie between 0 and 1, and be less than 1")


def check_ranges(settings: Any, area: str = "area", aspect: str = "aspect") -> None:
    """Areas as shares of the whole and aspects of sides: least and most, above 0."""
    for name, most in ((area, 1.0), (aspect, inf)):
        if name:
            low, high = getattr(settings, name)
            if not 0 < low <= high <= most or high == inf:
                limit = " and at most 1" if most == 1 else ""
                raise ValueError(f"{name} is {low:g} to {high:g} but must be above 0{limit}, the smaller one first")


def check_positive(settings: Any, *names: str) -> None:
    """Finite and above 0."""
    for name in names:
        if not 0 < getattr(settings, name) < inf:
            raise ValueError(f"{name} is {getattr(settings, name)} but must be above 0")
