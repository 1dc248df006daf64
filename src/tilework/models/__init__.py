"""Whole networks: `create_model(name, ...)`."""

from tilework.models.model import Model, ModelConfig, Output
from tilework.models.vit import Vit, VitConfig
from tilework.models.zoo import create_model, preset, presets

__all__ = ["Model", "ModelConfig", "Output", "Vit", "VitConfig", "create_model", "preset", "presets"]
