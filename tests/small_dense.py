"""Weights and inputs that anyone can make again, for what was compared with other people's own files; torchvision."""

from __future__ import annotations

import importlib
import json
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

# outputs of mmsegmentation (commit b040e147) with the weights of `fill` and the inputs of `wave`
MMSEG = json.loads((Path(__file__).parent / "golden/mmsegmentation.json").read_text())
# outputs of mmdetection 3.3.0, likewise
MMDET = json.loads((Path(__file__).parent / "golden/mmdetection.json").read_text())
LIBRARIES: list[torch.library.Library] = []  # operators live as long as their library


def import_torchvision() -> Any:
    """torchvision, for its functions in Python, whether its library was built for this torch or not."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:  # built for another torch: its Python side asks for operators that its library did not bring
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        LIBRARIES.append(library)
    return importlib.import_module("torchvision")


def fill(module: nn.Module) -> None:
    """Waves for weights; variances and scales of norms about 1."""
    with torch.no_grad():
        for k, (name, tensor) in enumerate(module.state_dict().items()):
            if tensor.is_floating_point():
                n = torch.arange(tensor.numel(), dtype=torch.float64)
                value = torch.sin(0.7 * n + k) * (0.3 if tensor.ndim > 1 else 0.5)
                value = 1 + value.abs() if name.endswith("running_var") else value
                value = 1 + value if name.endswith("bn.weight") else value
                tensor.copy_(value.view_as(tensor).to(tensor.dtype))


def wave(shape: tuple[int, ...], phase: float) -> Tensor:
    """An input."""
    return torch.cos(0.37 * torch.arange(prod(shape), dtype=torch.float64) + phase).view(shape).float()
