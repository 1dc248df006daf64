"""Tilework: train vision models from tokens instead of pixels."""

from __future__ import annotations

import importlib
from typing import Any

from tilework.version import __version__

# name: (module, attribute); imported when first used, so that `import tilework` is quick and needs no torch
_SURFACE = {
    "open": ("tilework.store", "Store"),
    "TokenDataset": ("tilework.data", "TokenDataset"),
    "create_tokenizer": ("tilework.tokenizers", "create_tokenizer"),
    "create_model": ("tilework.models", "create_model"),
    "fit": ("tilework.runs", "train"),
    "evaluate": ("tilework.runs", "evaluate_run"),
    "load": ("tilework.runs", "load_exported"),
}
__all__ = ["__version__", "recipes", *_SURFACE]


def __getattr__(name: str) -> Any:
    if name == "recipes":
        return importlib.import_module("tilework.recipes")
    if name not in _SURFACE:
        raise AttributeError(f"module 'tilework' has no attribute '{name}'")
    module, attribute = _SURFACE[name]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
