"""Recipes: functions that return a whole typed configuration; `tilework.recipes.demo_token()`."""

from typing import Any

from tilework.recipes import dct, demo, good_tokenizers, lv_vit, seit, seitpp, sequences, tl_align, tokenizers
from tilework.recipes.chain import check_links, train_chain
from tilework.recipes.export import export_run, load_exported
from tilework.recipes.job import plan, prepare, train
from tilework.recipes.run import Chain, Extra, Link, Run, chain, chains, equip, equip_chain, recipe, recipes
from tilework.recipes.trained import evaluate_run, probe_run

__all__ = [
    "Chain",
    "Extra",
    "Link",
    "Run",
    "chain",
    "chains",
    "check_links",
    "dct",
    "demo",
    "equip",
    "equip_chain",
    "evaluate_run",
    "export_run",
    "good_tokenizers",
    "load_exported",
    "lv_vit",
    "plan",
    "prepare",
    "probe_run",
    "recipe",
    "recipes",
    "seit",
    "seitpp",
    "sequences",
    "tl_align",
    "tokenizers",
    "train",
    "train_chain",
]


def __getattr__(name: str) -> Any:
    for known in (recipes, chains):
        if name in list(known):
            return known[name]
    raise AttributeError(f"module 'tilework.recipes' has no attribute '{name}'")
