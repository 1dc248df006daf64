"""Recipes: functions that return a whole typed configuration; `tilework.recipes.demo_token()`."""

from typing import Any

from tilework.recipes import demo, tokenizers
from tilework.recipes.build import evaluate_run, plan, prepare, train
from tilework.recipes.run import Extra, Run, recipe, recipes

__all__ = ["Extra", "Run", "demo", "evaluate_run", "plan", "prepare", "recipe", "recipes", "tokenizers", "train"]


def __getattr__(name: str) -> Any:
    if name not in list(recipes):
        raise AttributeError(f"module 'tilework.recipes' has no attribute '{name}'")
    return recipes[name]
