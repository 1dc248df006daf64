"""Registry: names to things, with a hint for a wrong name."""

from __future__ import annotations

import pytest

from tilework.core.errors import ConfigError
from tilework.core.registry import Registry, nearest


@pytest.fixture
def fruits() -> Registry[object]:
    registry: Registry[object] = Registry("fruit")
    for name in ("pear", "apple", "quince"):
        registry.add(name)(object())
    return registry


def test_decorator_files_and_returns_the_thing(fruits: Registry[object]) -> None:
    thing = object()
    assert fruits.add("plum")(thing) is thing
    assert fruits["plum"] is thing


def test_names_come_sorted(fruits: Registry[object]) -> None:
    assert list(fruits) == ["apple", "pear", "quince"]


def test_a_name_is_taken_once(fruits: Registry[object]) -> None:
    before = fruits["pear"]
    with pytest.raises(ValueError, match="fruit 'pear' is registered twice"):
        fruits.add("pear")(object())
    assert fruits["pear"] is before


def test_unknown_name_is_refused_with_the_nearest(fruits: Registry[object]) -> None:
    with pytest.raises(ConfigError, match=r"unknown fruit 'aple'.*did you mean 'apple'.*apple, pear, quince"):
        fruits["aple"]


def test_name_of_is_the_inverse(fruits: Registry[object]) -> None:
    for name in fruits:
        assert fruits.name_of(fruits[name]) == name


def test_name_of_goes_by_identity_not_equality() -> None:
    registry: Registry[object] = Registry("list")
    first, second = registry.add("first")([]), registry.add("second")([])
    assert first == second
    assert registry.name_of(second) == "second"


def test_nearest_without_a_close_word_lists_all_or_the_closest_few() -> None:
    assert nearest("zzzz", ["b", "a"]) == "known: a, b"
    many = [f"recipe_{i}" for i in range(100)]
    assert nearest("recipe_7x", many) == "did you mean 'recipe_7'?"
    assert nearest("7", [*many, "zzzz"]).startswith("closest of 101: recipe_7, ")
    assert nearest("zzzz", many).count(",") == 4
