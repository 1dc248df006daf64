"""Networks by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from torch import nn

from tilework.core.errors import ConfigError
from tilework.core.registry import Registry
from tilework.layers.stems import StemConfig, TokenStemConfig
from tilework.models.model import ModelConfig
from tilework.models.vit import VitConfig

presets: Registry[ModelConfig] = Registry("model")

for _name, _width, _depth, _heads in (
    ("ti", 192, 12, 3),
    ("s", 384, 12, 6),
    ("b", 768, 12, 12),
    ("l", 1024, 24, 16),
):
    presets.add(f"vit_{_name}")(VitConfig(width=_width, depth=_depth, heads=_heads))
    if _name != "l":
        presets.add(f"deit_{_name}")(VitConfig(width=_width, depth=_depth, heads=_heads, drop_path=0.1))


def preset(name: str, **changes: Any) -> ModelConfig:
    """The settings of a named network, with changes."""
    return replace(presets[name], **changes)


def create_model(
    name: str,
    *,
    input: Literal["pixels", "tokens"] = "pixels",
    grid: tuple[int, int] = (224, 224),
    code_dim: int | None = None,
    classes: int = 1000,
    stem: StemConfig | None = None,
    **changes: Any,
) -> nn.Module:
    """A network by name. grid: image size in pixels, or code grid; `changes` override the named settings."""
    if input == "pixels" and code_dim is not None:
        raise ConfigError("code_dim belongs to a token model", "pass input='tokens'")
    if input == "tokens":
        if code_dim is None:
            raise ConfigError("a token model needs code_dim", "pass code_dim=store.codebook.shape[1]")
        stem = stem or TokenStemConfig()
    if stem is not None:
        changes["stem"] = stem
    return preset(name, **changes).build(3 if code_dim is None else code_dim, grid, classes)
