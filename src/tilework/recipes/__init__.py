"""Recipes: functions that return a whole typed configuration; `recipes[name]()`."""

from tilework.recipes import demo
from tilework.recipes.build import evaluate_run, plan, prepare, train
from tilework.recipes.run import Extra, Run, recipe, recipes

__all__ = ["Extra", "Run", "demo", "evaluate_run", "plan", "prepare", "recipe", "recipes", "train"]
