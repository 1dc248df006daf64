"""Small data for tests: nothing here is downloaded."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from small_data import write_images, write_store
from small_dense import import_torchvision


@pytest.fixture(scope="session")
def torchvision() -> Any:
    """As an oracle: what it has in Python."""
    if find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    return import_torchvision()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write_store(tmp_path / "train.tok")


@pytest.fixture
def val_store(tmp_path: Path) -> Path:
    return write_store(tmp_path / "val.tok", count=18, seed=1)
