"""Small data for tests: nothing here is downloaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from small_data import write_images, write_store


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write_store(tmp_path / "train.tok")


@pytest.fixture
def val_store(tmp_path: Path) -> Path:
    return write_store(tmp_path / "val.tok", count=18, seed=1)
