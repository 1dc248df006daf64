"""Where a transformer looks: gradient times attention (Chefer et al., 2021, "Generic Attention-model Explainability",
the rule of self-attention), rollout (Abnar & Zuidema, 2020), integrated gradients.

B batch | N patch tokens | T = 1 + N tokens, the class token first | k heads | K classes
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from tilework.core.errors import ConfigError, MachineError
from tilework.layers.attention import Attention
from tilework.models import Model, Vit


@contextmanager
def watched(model: nn.Module) -> Iterator[list[Tensor]]:
    """The attention matrices of every block, (B, k, T, T), in the order they are used."""
    layers = [module for module in model.modules() if isinstance(module, Attention)]
    if not layers:
        raise ConfigError(f"a {type(model).__name__} has no attention to look at", "explain a transformer of ours")
    seen: list[Tensor] = []
    for layer in layers:
        layer.seen = seen
    try:
        yield seen
    finally:
        for layer in layers:
            layer.seen = None


def gradient_attention(model: Model, x: Tensor, classes: Tensor) -> Tensor:
    """What speaks for a class in each patch: R <- R + mean over heads of (gradient * attention)+ R, block by block.

    x: (B, ...) as the model takes it; classes: (B,); returns (B, h, w), not negative.
    """
    model.eval()
    with torch.enable_grad(), watched(model) as seen:
        out = model(x.detach().requires_grad_())  # weights may be frozen
        chosen = out.logits.gather(1, classes[:, None]).sum()
        slopes = torch.autograd.grad(chosen, seen)
    total = torch.eye(seen[0].shape[-1], device=x.device).expand(len(x), -1, -1)  # (B, T, T)
    for attention, slope in zip(seen, slopes, strict=True):
        total = total + (slope * attention).clamp(min=0).mean(1).detach() @ total
    return _read(model, total).unflatten(1, out.grid)


def rollout(model: Model, x: Tensor) -> Tensor:
    """How much of each patch reaches what the head reads, whatever the class. x: (B, ...); returns (B, h, w)."""
    model.eval()
    with torch.no_grad(), watched(model) as seen:
        grid = model(x).grid
    total = torch.eye(seen[0].shape[-1], device=x.device).expand(len(x), -1, -1)
    for attention in seen:
        total = (attention.mean(1) @ total + total) / 2
    return _read(model, total).unflatten(1, grid)


def gradient(model: Model, x: Tensor, classes: Tensor, steps: int = 16) -> Tensor:
    """Integrated gradients by captum, summed over the values of each patch. Returns (B, h, w), not negative."""
    try:
        attribution: Any = import_module("captum.attr")
    except ImportError as error:
        raise MachineError("gradient attribution needs captum", "pip install captum") from error
    model.eval()
    tool = attribution.IntegratedGradients(lambda z: model(z).logits)
    found = tool.attribute(x, target=classes, n_steps=steps).sum(1, keepdim=True).clamp(min=0).detach()  # (B, 1, H, W)
    return torch.nn.functional.adaptive_avg_pool2d(found, model.grid)[:, 0]


def _read(model: Model, total: Tensor) -> Tensor:
    """The row that the head reads: the class token's, or the mean of the patches'. (B, T, T) to (B, N)."""
    pooled = isinstance(model, Vit) and model.config.pool == "mean"
    return (total[:, 1:].mean(1) if pooled else total[:, 0])[:, 1:]
