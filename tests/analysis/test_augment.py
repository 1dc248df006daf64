"""Pictures of augmentations and the separability of features: every file, its refusals, and the numbers in it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from small_data import write_images
from tilework.analysis.augment import augment_views, projected, separability
from tilework.augment import Embed, Normalise
from tilework.augment.adapter import save_adapter
from tilework.cli.main import main
from tilework.core.errors import ConfigError, InputError, OutputError
from tilework.data import ImageFolder
from tilework.layers.stems import PatchStemConfig, TokenStemConfig
from tilework.layers.token_adapt import TokenAdaptNetwork
from tilework.models import VitConfig
from tilework.objectives import ClassifyConfig
from tilework.runs import Run, train
from tilework.tokenizers import VitVqConfig, load_tokenizer, save_tokenizer
from tilework.tokenizers.image_codes import Tokenizing
from tilework.tokenizers.tokenize import tokenize
from tilework.train import FitConfig

PICTURES = {"flip.png", "affine.png", "resized-crop.png", "mixup-0.5.png", "cutmix.png", "colours.png"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, a tokenizer, a TokenAdapt, a store, a run on codes and one on pixels."""
    root = tmp_path_factory.mktemp("views")
    torch.manual_seed(0)
    write_images(root / "images")
    config = VitVqConfig(patch=4, codes=16, code_dim=4, width=16, depth=1, heads=2)
    save_tokenizer(root / "tokenizer", config.build(3, (32, 32), 0), config, (32, 32))
    tokenizer, card = load_tokenizer(root / "tokenizer")
    tokenize(ImageFolder.open(root / "images"), Tokenizing(tokenizer, card, torch.device("cpu")), root / "x.tok")
    network = TokenAdaptNetwork(4, width=16, heads=2)
    network.fit_codes(tokenizer.codebook.detach())
    save_adapter(root / "adapter", network, tokenizer.codebook, {"name": "", "sha256": ""})
    fit = FitConfig(epochs=0, steps=1, batch=6, log_every=1)
    codes = VitConfig(width=16, depth=1, heads=2, stem=TokenStemConfig())
    train(Run(codes, ClassifyConfig(), (Embed(),), (Embed(),), fit=fit), root / "x.tok", None, root / "run", quiet=True)
    pixels = VitConfig(width=16, depth=1, heads=2, stem=PatchStemConfig(8))
    steps = (Normalise(),)
    run = Run(pixels, ClassifyConfig(), steps, steps, size=(32, 32), fit=fit)
    train(run, root / "images", None, root / "pixels", quiet=True)
    return root


def test_all_files_and_numbers(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["analyze", "augment", "--data", made / "x.tok", "--tokenizer", made / "tokenizer", "--out", tmp_path / "v"]
    words += ["--adapter", made / "adapter", "--runs", made / "run", "--pixel-run", made / "pixels"]
    words += ["--images", made / "images", "--count", "3", "--json"]
    with pytest.raises(SystemExit, match="0"):
        main([str(word) for word in words])
    told = json.loads(capsys.readouterr().out)
    names = {path.name for path in (tmp_path / "v").iterdir()}
    assert names == PICTURES | {"separability.png", "curves.png", "results.json"}
    assert all((tmp_path / "v" / name).read_bytes()[:4] == b"\x89PNG" for name in names - {"results.json"})
    found = json.loads((tmp_path / "v/results.json").read_text())["linear_accuracy"]
    assert found == told["linear_accuracy"]
    assert set(found) == {"codes", "TokenAdapt", "pixels"}
    assert all(0 <= value <= 1 for value in found.values())


def test_without_runs_only_pictures(made: Path, tmp_path: Path) -> None:
    found = augment_views(made / "x.tok", made / "tokenizer", made / "adapter", tmp_path / "v", count=2)
    assert found == {}
    assert {path.name for path in (tmp_path / "v").iterdir()} == PICTURES | {"results.json"}


def test_refusals_leave_nothing(made: Path, tmp_path: Path) -> None:
    store, tokenizer, adapter, out = made / "x.tok", made / "tokenizer", made / "adapter", tmp_path / "v"
    with pytest.raises(InputError, match="not a token store"):
        augment_views(made / "images", tokenizer, adapter, out)
    with pytest.raises(ConfigError, match="--count 99 is not"):
        augment_views(store, tokenizer, adapter, out, count=99)
    with pytest.raises(InputError, match="no TokenAdapt"):
        augment_views(store, tokenizer, made / "run", out)
    with pytest.raises(InputError, match="was trained on images"):
        augment_views(store, tokenizer, adapter, out, [made / "pixels"])
    with pytest.raises(InputError, match="was not trained on pixels"):
        augment_views(store, tokenizer, adapter, out, [made / "run"], (made / "run", made / "images"))
    config = VitVqConfig(patch=4, codes=16, code_dim=4, width=16, depth=1, heads=2)
    save_tokenizer(tmp_path / "other", config.build(3, (32, 32), 0), config, (32, 32))
    with pytest.raises(ConfigError, match="other codes"):
        augment_views(store, tmp_path / "other", adapter, out)
    assert not out.exists()
    out.mkdir()
    with pytest.raises(OutputError):
        augment_views(store, tokenizer, adapter, out)


def test_separability_knows_separate_from_mixed_points() -> None:
    labels = torch.arange(200) % 4 + 5
    corners = torch.eye(4)[labels - 5] * 10
    noise = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    assert separability(corners + noise, labels) == 1.0
    assert separability(noise, labels) < 0.5


def test_projection_keeps_the_plane_of_largest_variance() -> None:
    plane = np.random.default_rng(0).normal(size=(50, 2)) * [9.0, 5.0]
    points = torch.zeros(50, 6)
    points[:, [1, 4]] = torch.from_numpy(plane).float()
    found = projected(points)
    centred = plane - plane.mean(0)
    assert np.allclose(found @ found.T, centred @ centred.T, atol=1e-2), "the same up to a turn"
