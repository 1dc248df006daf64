"""Validation data carry the columns that a task names, from the store to what is measured."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from small_data import write_images, write_store
from tilework.augment import Embed, Normalise
from tilework.core.batch import Batch
from tilework.core.errors import ConfigError, InputError
from tilework.data import ImageFolder
from tilework.data.label_maps import MapsCard, write_maps
from tilework.data.score_map import ScoreMap
from tilework.layers.stems import PatchStemConfig, TokenPatchStemConfig
from tilework.models import VitConfig
from tilework.objectives import Relabel, RelabelConfig, Task
from tilework.runs import Run, train
from tilework.store import Store
from tilework.store.label_maps import encode_map
from tilework.train import FitConfig

CARD = MapsCard(("class0", "class1", "class2"), (2, 2), 2, "chance", 32)
FIT = FitConfig(epochs=0, steps=2, batch=8)
TOKENS = VitConfig(width=16, depth=1, heads=2, stem=TokenPatchStemConfig())
RUN = Run(TOKENS, RelabelConfig(), (Embed(),), (Embed(),), fit=FIT)


def records(shares: np.ndarray) -> list[bytes]:
    """Maps that say class 0 with the share of each image."""
    ids = np.broadcast_to(np.array([0, 1]), (2, 2, 2))
    return [encode_map(ids, np.stack([np.full((2, 2), s), np.full((2, 2), 1 - s)], -1)) for s in shares]


def annotated(path: Path, shares: np.ndarray) -> Path:
    store = Store(write_store(path, count=len(shares)))
    store.add_column("label_map", records(shares))
    store.add_column("label_map_card", [json.dumps(asdict(CARD))] * len(shares))
    return path


@pytest.fixture
def judged_by_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """An objective that reads label maps of validation samples."""

    def score(self: Relabel, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        maps = batch.columns["label_map"]
        assert isinstance(maps, ScoreMap)
        target = maps.target(1, 1)
        return {"share": torch.where(target.ids == 0, target.weight, 0).sum((1, 2))}

    monkeypatch.setattr(Relabel, "score", score)
    task = Task(columns=("label_map",), validation_columns=("label_map",), metric="share")
    monkeypatch.setattr(RelabelConfig, "task", task)


@pytest.mark.usefixtures("judged_by_maps")
def test_columns_of_a_store_reach_what_is_measured(tmp_path: Path) -> None:
    shares = np.linspace(0.55, 0.9, 11)
    data, val = annotated(tmp_path / "a.tok", np.full(24, 0.6)), annotated(tmp_path / "b.tok", shares)
    found = train(RUN, data, val, tmp_path / "run", "cpu", quiet=True).metrics
    assert found == {"share": pytest.approx(shares.mean(), abs=0.01)}  # maps are kept with 8 bits


@pytest.mark.usefixtures("judged_by_maps")
def test_validation_data_without_the_column_are_refused(tmp_path: Path) -> None:
    data, val = annotated(tmp_path / "a.tok", np.full(24, 0.6)), write_store(tmp_path / "b.tok")
    with pytest.raises(InputError, match=r"b\.tok has no label maps"):
        train(RUN, data, val, tmp_path / "run", "cpu", quiet=True)
    images = write_images(tmp_path / "images")
    write_maps(tmp_path / "maps", CARD, ImageFolder.open(images).keys, [records(np.full(24, 0.6))])
    steps, pixels = (Normalise(),), replace(TOKENS, stem=PatchStemConfig(8))
    run = replace(RUN, model=pixels, augment=steps, evaluation=steps, size=(32, 32), maps=str(tmp_path / "maps"))
    with pytest.raises(ConfigError, match="the objective needs label maps of"):
        train(run, images, images, tmp_path / "run", "cpu", quiet=True)


def test_without_the_need_none_are_asked_for(tmp_path: Path) -> None:
    data, val = annotated(tmp_path / "a.tok", np.full(24, 0.6)), write_store(tmp_path / "b.tok")
    assert "top1" in train(RUN, data, val, tmp_path / "run", "cpu", quiet=True).metrics
