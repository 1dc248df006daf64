"""A store small enough to damage in every place, and its contents."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilework.store import StoreWriter


@pytest.fixture(scope="session")
def contents() -> SimpleNamespace:
    """Seven images of 2x3 codes out of ten, in three classes."""
    rng = np.random.default_rng(0)
    return SimpleNamespace(
        ids=rng.integers(0, 10, (7, 2, 3)),
        labels=[0, 2, 1, 1, 0, 2, 0],
        keys=["a.png", "", "ü/ß.png", "図.png", "a b", "\U0001f5bc", "z"],
        classes=("ant", "bee", "cat"),
        codebook=rng.normal(size=(10, 2)).astype(np.float32),
    )


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory, contents: SimpleNamespace) -> Path:
    """The contents as a store of shards with 3, 3 and 1 images; not to be changed."""
    path = tmp_path_factory.mktemp("written") / "tiny.tok"
    with StoreWriter(
        path, contents.codebook, contents.classes, licence="none", codec="packed", shard_images=3
    ) as writer:
        writer.add(contents.ids, contents.labels, contents.keys)
    return path


@pytest.fixture
def tiny(tmp_path: Path, written: Path) -> Path:
    """A copy of that store: quicker than writing it, which waits for the disk."""
    return shutil.copytree(written, tmp_path / "tiny.tok")


@pytest.fixture
def forge() -> Callable[..., None]:
    """Change fields of a manifest and seal it again, as an attacker would."""

    def change(path: Path, **fields: Any) -> None:
        text = json.loads((path / "manifest.json").read_text())
        body = {key: value for key, value in {**text, **fields}.items() if key not in ("format", "version", "seal")}
        seal = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        (path / "manifest.json").write_text(json.dumps({**text, **body, "seal": seal}))

    return change
