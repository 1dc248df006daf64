"""Stems compared: every file, numbers of named stems and of runs, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilework.analysis.stems import stem_views
from tilework.augment import Embed, Normalise
from tilework.cli.main import main
from tilework.core.errors import ConfigError, InputError, OutputError
from tilework.layers.stem_moto import MotoStemConfig
from tilework.layers.stems import PatchStemConfig, TokenStemConfig
from tilework.models import VitConfig
from tilework.objectives import ClassifyConfig
from tilework.runs import Run, train
from tilework.train import FitConfig

FIT = FitConfig(epochs=0, steps=1, batch=6, log_every=1)


def test_named_stems_and_runs_on_images(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vit = VitConfig(width=16, depth=1, heads=2, stem=MotoStemConfig(PatchStemConfig(8)))
    run = Run(vit, ClassifyConfig(), (Normalise(),), (Normalise(),), size=(32, 32), fit=FIT)
    train(run, images, None, tmp_path / "mine", quiet=True)
    words = ["analyze", "stems", "--data", images, "--val", images, "--stems", "plain", "moto_token", "--runs"]
    words += [tmp_path / "mine", "--width", 16, "--size", 32, 32, "--epochs", 1, "--count", 3]
    with pytest.raises(SystemExit, match="0"):
        main([str(word) for word in (*words, "--out", tmp_path / "s", "--json")])
    told = json.loads(capsys.readouterr().out)
    written = json.loads((tmp_path / "s/results.json").read_text())
    assert set(written) == {"plain", "moto_token", "mine"}
    assert told["plain"] == written["plain"]
    assert {p.name for p in (tmp_path / "s").iterdir()} == {"stems.png", "table.md", "layouts.png", "results.json"}
    assert (tmp_path / "s/table.md").read_text().count("\n") == 5


def test_stems_on_codes(store: Path, val_store: Path, tmp_path: Path) -> None:
    vit = VitConfig(width=16, depth=1, heads=2, stem=TokenStemConfig())
    train(Run(vit, ClassifyConfig(), (Embed(),), (Embed(),), fit=FIT), store, None, tmp_path / "mine", quiet=True)
    passes: list[tuple[int, int]] = []
    found = stem_views(
        store,
        val_store,
        tmp_path / "s",
        runs=[tmp_path / "mine"],
        epochs=2,
        samples=8,
        progress=lambda done, total: passes.append((done, total)),
    )
    assert passes == [(1, 2), (2, 2)]
    assert found["mine"]["mse"] > 0
    assert not (tmp_path / "s/layouts.png").exists()


def test_refusals(images: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no stem to measure"):
        stem_views(images, images, tmp_path / "s")
    with pytest.raises(ConfigError, match="--epochs is 0"):
        stem_views(images, images, tmp_path / "s", stems=["plain"], size=(32, 32), epochs=0)
    with pytest.raises(ConfigError, match="did you mean 'plain'"):
        stem_views(images, images, tmp_path / "s", stems=["plein"], size=(32, 32))
    with pytest.raises(InputError, match=r"'stem_adapter' takes tokens, but .* is an image folder"):
        stem_views(images, images, tmp_path / "s", stems=["stem_adapter"], size=(32, 32))
    assert not (tmp_path / "s").exists()
    (tmp_path / "s").mkdir()
    with pytest.raises(OutputError, match="exists"):  # before the first decoder learns
        stem_views(images, images, tmp_path / "s", stems=["plain"])
    with pytest.raises(InputError, match="no run in"):
        stem_views(images, images, tmp_path / "new", stems=["plain"], runs=[tmp_path / "nowhere"])
