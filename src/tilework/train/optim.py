"""Optimiser and its parameter groups: weight decay and layer-wise learning rates."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tilework.core.errors import ConfigError
from tilework.models.model import Model
from tilework.train.settings import OptimConfig

NO_DECAY = (  # no weight decay, as for biases, norms and scales
    "cls_token",
    "pos_embed",
    "relative_position_bias_table",
    "entity_scale",
    "entity_shift",
)


def build_optimiser(objective: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """AdamW or SGD over an objective; `scale` of each group multiplies the scheduled learning rate.

    Fused implementations skip a step on the device when `found_inf` is set, without synchronising.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in objective.named_parameters():
        if parameter.requires_grad:
            plain = parameter.ndim < 2 or name.rpartition(".")[2] in NO_DECAY
            key = (0.0 if plain else config.weight_decay, _scale(objective, name, config))
            groups.setdefault(key, []).append(parameter)
    params: list[dict[str, Any]] = [
        {"params": members, "weight_decay": decay, "scale": scale} for (decay, scale), members in groups.items()
    ]
    if config.name == "adamw":
        return torch.optim.AdamW(params, lr=config.lr, betas=config.betas, fused=True)
    sgd = torch.optim.SGD(params, lr=config.lr, momentum=config.momentum, fused=True)
    for members in groups.values():  # else a skipped first step would leave the momentum undefined
        for parameter in members if config.momentum else []:
            sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return sgd


def _scale(objective: nn.Module, name: str, config: OptimConfig) -> float:
    """Learning rate of a parameter relative to the scheduled one: layer_decay by depth, stem_scale in the stem."""
    model = objective.model
    if config.stem_scale != 1.0 and not (isinstance(model, Model) and model.stem_names):
        what = (
            f"fit.optim.stem_scale={config.stem_scale} needs a model with a stem, and {type(model).__name__} has none"
        )
        raise ConfigError(what, "set it to 1")
    inner = name.removeprefix("model.")
    if not isinstance(model, Model) or inner == name:
        return 1.0
    scale = 1.0 if config.layer_decay == 1.0 else config.layer_decay ** (model.layers - 1 - model.layer_of(inner))
    in_stem = inner.removeprefix(model.prefix).startswith(model.stem_names)
    return float(scale * config.stem_scale if in_stem else scale)
