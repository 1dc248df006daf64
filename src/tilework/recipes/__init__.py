"""Recipes: whole typed configurations by name, `tilework.recipes.demo_token()`."""

from typing import Any

from tilework.recipes import dct, demo, good_tokenizers, lv_vit, seit, seitpp, sequences, tl_align, tokenizers
from tilework.recipes.registry import chain, chains, recipe, recipes

__all__ = [
    "chain",
    "chains",
    "dct",
    "demo",
    "good_tokenizers",
    "lv_vit",
    "recipe",
    "recipes",
    "seit",
    "seitpp",
    "sequences",
    "tl_align",
    "tokenizers",
]


def __getattr__(name: str) -> Any:
    for known in (recipes, chains):
        if name in list(known):
            return known[name]
    raise AttributeError(f"module 'tilework.recipes' has no attribute '{name}'")
