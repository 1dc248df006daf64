"""Every file of recipes; each files its own."""

from __future__ import annotations

from importlib import import_module

from tilework.recipes.recipe import Recipe, catalogue, find, recipes, run_of, small_forms

__all__ = ["Recipe", "catalogue", "find", "recipes", "run_of", "small_forms"]

for _file in (
    "seit",
    "seitpp",
    "dct",
    "lv_vit",
    "tl_align",
    "good_tokenizers",
    "demo",
    "segment",
    "detect",
    "tokenizers",
    "sequences",
    "teachers",
):
    import_module(f"tilework.recipes.{_file}")
