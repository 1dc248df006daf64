"""The names under which recipes are filed."""

from __future__ import annotations

from collections.abc import Callable

from tilework.core.registry import Registry
from tilework.runs.run import Chain, Run

Recipe = Callable[[], Run]
recipes: Registry[Recipe] = Registry("recipe")


def recipe(function: Recipe) -> Recipe:
    """File a recipe under the name of its function."""
    return recipes.add(function.__name__)(function)


Chained = Callable[[], Chain]
chains: Registry[Chained] = Registry("chain")


def chain(function: Chained) -> Chained:
    """File a chain under the name of its function."""
    return chains.add(function.__name__)(function)
