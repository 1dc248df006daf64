"""timm as an oracle."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import pytest

from small_dense import import_torchvision


@pytest.fixture(scope="session")
def timm() -> Any:
    if find_spec("timm") is None:
        pytest.skip("timm is not installed")
    import_torchvision()
    return importlib.import_module("timm")
