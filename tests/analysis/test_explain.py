"""`tilework explain`: one picture for runs on pixels and on codes, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from small_data import write_images
from tilework.analysis.explain import explain
from tilework.augment import CentreCrop, Embed, Normalise
from tilework.cli.main import main
from tilework.core.errors import ConfigError, InputError
from tilework.data import ImageFolder
from tilework.layers.stems import PatchStemConfig, TokenStemConfig
from tilework.models import VitConfig
from tilework.objectives import ClassifyConfig
from tilework.runs import Run, train
from tilework.tokenizers import VitVqConfig, load_tokenizer, save_tokenizer
from tilework.tokenizers.image_codes import Tokenizing
from tilework.tokenizers.tokenize import tokenize
from tilework.train import FitConfig


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("explain")
    torch.manual_seed(0)
    write_images(root / "images", count=4)
    config = VitVqConfig(patch=4, codes=16, code_dim=4, width=16, depth=1, heads=2)
    save_tokenizer(root / "tokenizer", config.build(3, (32, 32), 0), config, (32, 32))
    tokenizer, card = load_tokenizer(root / "tokenizer")
    tokenize(ImageFolder.open(root / "images"), Tokenizing(tokenizer, card, torch.device("cpu")), root / "x.tok")
    fit = FitConfig(epochs=0, steps=1, batch=6)
    codes = VitConfig(width=16, depth=1, heads=2, stem=TokenStemConfig())
    steps = (Embed(), CentreCrop((6, 6)))
    train(Run(codes, ClassifyConfig(), steps, steps, fit=fit), root / "x.tok", None, root / "codes", quiet=True)
    pixels = VitConfig(width=16, depth=1, heads=2, stem=PatchStemConfig(8))
    run = Run(pixels, ClassifyConfig(), (Normalise(),), (Normalise(),), size=(32, 32), fit=fit)
    train(run, root / "images", None, root / "pixels", quiet=True)
    return root


@pytest.mark.parametrize(("method", "rows"), [("relevance", 4), ("gradient_attention", 4), ("rollout", 2)])
def test_two_runs_in_one_picture(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str, rows: int
) -> None:
    words = ["explain", made / "codes", made / "pixels", "--data", made / "x.tok", made / "images", "--count", "3"]
    words += ["--tokenizer", made / "tokenizer", "--out", tmp_path / "w.png", "--method", method, "--json"]
    with pytest.raises(SystemExit, match="0"):
        main([str(word) for word in words])
    told = json.loads(capsys.readouterr().out)
    assert (tmp_path / "w.png").read_bytes()[:4] == b"\x89PNG"
    assert len(told) == 1 + rows
    assert all(line.count("class") == 3 for name, line in told.items() if name != "picture")


def test_refusals(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "w.png"
    shutil.copytree(made / "codes", tmp_path / "codes")
    shutil.rmtree(tmp_path / "codes/tokenizer")
    shutil.copytree(made / "x.tok", tmp_path / "x.tok")  # without the note where its photographs lie
    with pytest.raises(ConfigError, match="--tokenizer DIRECTORY or --images"):
        explain([tmp_path / "codes"], [tmp_path / "x.tok"], out)
    with pytest.raises(InputError, match="was trained on images"):
        explain([made / "pixels"], [made / "x.tok"], out)
    with pytest.raises(ConfigError, match="no run to explain"):
        explain([], [made / "images"], out)
    with pytest.raises(ConfigError, match="--classes is 0"):
        explain([made / "pixels"], [made / "images"], out, ranks=0)
    with pytest.raises(ConfigError, match="--count 99 is not"):
        explain([made / "pixels"], [made / "images"], out, count=99)
    with pytest.raises(ConfigError, match="PNG"):
        explain([made / "pixels"], [made / "images"], tmp_path / "w.jpg")
    with pytest.raises(ConfigError, match="one for all"):
        explain([made / "pixels"], [made / "images"] * 2, out)
    assert not out.exists()
