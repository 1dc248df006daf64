"""timm as an oracle."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import pytest
import torch

LIBRARIES: list[torch.library.Library] = []  # operators live as long as their library


@pytest.fixture(scope="session")
def timm() -> Any:
    if find_spec("timm") is None:
        pytest.skip("timm is not installed")
    try:
        importlib.import_module("torchvision")
    except RuntimeError:  # built for another torch: its Python side asks for operators that its library did not bring
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        LIBRARIES.append(library)
    return importlib.import_module("timm")
