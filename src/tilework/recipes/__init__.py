"""Recipes: whole typed configurations by name, `tilework.recipes.demo_token()`; imported when first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilework.core.errors import ConfigError

if TYPE_CHECKING:
    from tilework.recipes.every import Recipe, catalogue, find, recipes, run_of, small_forms

__all__ = ["Recipe", "catalogue", "find", "recipes", "run_of", "small_forms"]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    every = import_module("tilework.recipes.every")
    if name in __all__:
        return getattr(every, name)
    try:
        return every.find(name)
    except ConfigError as error:
        raise AttributeError(f"module 'tilework.recipes' has no attribute '{name}'") from error


def __dir__() -> list[str]:
    return sorted([*__all__, *import_module("tilework.recipes.every").recipes])
