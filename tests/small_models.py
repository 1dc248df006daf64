"""Every named network with its shape cut down."""

from __future__ import annotations

from typing import Any

from tilework.models import (
    ConvnextConfig,
    MlpMixerConfig,
    ModelConfig,
    PvtConfig,
    PvtV2Config,
    ResnetConfig,
    SwinConfig,
    T2tVitConfig,
    VitConfig,
    preset,
    presets,
)

SMALL: dict[type[ModelConfig], dict[str, Any]] = {
    VitConfig: {"width": 16, "depth": 1, "heads": 2},
    ResnetConfig: {"width": 16},
    PvtConfig: {"widths": (8, 8, 16, 16), "depths": (1, 2, 1, 1), "heads": (1, 2, 2, 4), "mlp_ratios": (2, 2, 2, 2)},
    PvtV2Config: {"widths": (8, 8, 16, 16), "depths": (1, 2, 1, 1), "heads": (1, 2, 2, 4), "mlp_ratios": (2, 2, 2, 2)},
    MlpMixerConfig: {"width": 16, "depth": 2, "token_hidden": 8, "channel_hidden": 16},
    ConvnextConfig: {"widths": (8, 8, 16, 16), "depths": (1, 2, 1, 1), "scale": 0.5},
    T2tVitConfig: {"width": 16, "depth": 1, "heads": 2},
    SwinConfig: {"width": 8, "depths": (2, 1, 2, 1), "heads": (1, 2, 2, 4), "window": 2},
}


def small(name: str) -> ModelConfig:
    """A preset with its shape cut down."""
    return preset(name, **SMALL[type(presets[name])])
