"""Tokenizers by name or path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tilework.core.errors import ConfigError
from tilework.core.location import HF, packaged
from tilework.models.model import ModelConfig
from tilework.tokenizers import titok, vit_vqgan
from tilework.tokenizers.tokenizer import Tokenizer, load_tokenizer

SIZES: dict[str, ModelConfig] = {**vit_vqgan.SIZES, **titok.SIZES}


def create_tokenizer(name_or_path: str | Path, **settings: Any) -> Tokenizer:
    """A trained tokenizer of a directory, the hub (hf://OWNER/NAME) or the package (box), or an untrained one."""
    if Path(name_or_path).is_dir() or str(name_or_path).startswith(HF) or str(name_or_path) in packaged():
        return load_tokenizer(name_or_path)[0]
    preset = SIZES.get(str(name_or_path))
    config = replace(preset, **settings) if preset else ModelConfig.choices[str(name_or_path)](**settings)
    tokenizer = config.build(3, (0, 0), 0)
    if not isinstance(tokenizer, Tokenizer):
        raise ConfigError(f"'{name_or_path}' is a {type(tokenizer).__name__}, not a tokenizer", "choose another name")
    return tokenizer
