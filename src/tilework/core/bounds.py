"""Bounds of settings: numbers that cannot be are refused by the settings that have them."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
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


def check_sizes(settings: Any, where: str, only: tuple[str, ...] = ()) -> None:
    """Whole numbers in settings and in all their parts: at least 1, or a lower default; ratios: above 0.

    Tuples of whole numbers are sizes too. only: fields to look at, if not all of them.
    """
    if isinstance(settings, tuple):
        for number, part in enumerate(settings):
            check_sizes(part, f"{where}.{number}", only)
    if not is_dataclass(settings):
        return
    for field in fields(settings):
        value, name = getattr(settings, field.name), f"{where}.{field.name}"
        values = value if isinstance(value, tuple) else (value,)
        if not only or field.name in only:
            whole = [one for one in values if isinstance(one, int) and not isinstance(one, bool)]
            least = _least(field)
            if whole and min(whole) < least:
                raise ValueError(f"{name} is {value} but must be at least {least}")
            if "ratio" in field.name and any(isinstance(one, float) and one <= 0 for one in values):
                raise ValueError(f"{name} is {value} but must be above 0")
        check_sizes(value, name, only)


def _least(field: Field[Any]) -> int:
    """1, or the default if that is lower: it stands for something of its own."""
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    values = default if isinstance(default, tuple) else (default,)
    return min([1, *(one for one in values if isinstance(one, int) and not isinstance(one, bool))])
