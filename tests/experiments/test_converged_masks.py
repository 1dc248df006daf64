"""Converged tables of segmentation: images drawn by seed, held masks, right pixels, bytes of what is stored."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from small_data import write_pairs
from tilework.augment import Embed, Normalise
from tilework.cli.main import main
from tilework.core.errors import ConfigError
from tilework.data.pairs import open_pairs
from tilework.experiments.converged import ConvergedTable, markdown
from tilework.experiments.protocol import Protocol
from tilework.layers.stems import PatchStemConfig, TokenPatchStemConfig
from tilework.models import LinearSegmenterConfig, VitConfig
from tilework.objectives import SegmentConfig
from tilework.recipes import Recipe, recipes
from tilework.runs import Draw, Run
from tilework.runs.segment import Segmenter
from tilework.store import Store
from tilework.tokenizers import VitVqConfig, save_tokenizer
from tilework.train import FitConfig

SMALL = Protocol(samples=8, passes=2, rates=(1e-3, 1e-2), held=3, seeds=2, looks=2)
VIT = VitConfig(width=16, depth=1, heads=2, pool="mean", stem=PatchStemConfig(8))


def pixels() -> Run:
    return Run(
        LinearSegmenterConfig(VIT, upscale=2),
        SegmentConfig(auxiliary=0.0),
        (Normalise(),),
        (Normalise(),),
        size=(40, 56),
        frame="squash",
        fit=FitConfig(epochs=0, steps=2, batch=4),
    )


def codes() -> Run:
    model = LinearSegmenterConfig(replace(VIT, stem=TokenPatchStemConfig()), upscale=2)
    return replace(pixels(), model=model, augment=(Embed(),), evaluation=(Embed(),))


@pytest.fixture(autouse=True)
def small_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    for recipe in (pixels, codes):
        monkeypatch.setitem(recipes._entries, recipe.__name__, Recipe(recipe.__name__, "", "", recipe()))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("masks")
    write_pairs(root / "train", 12)
    write_pairs(root / "val", 4, seed=1)
    torch.manual_seed(0)
    config = VitVqConfig(patch=4, codes=32, code_dim=8, width=16, depth=1, heads=2)
    save_tokenizer(root / "tokenizer", config.build(3, (40, 56), 0), config, (40, 56))
    for part, like in (("train", []), ("val", ["--like", str(root / "train.tok")])):
        line = ["tokenize", str(root / part), "--tokenizer", str(root / "tokenizer"), "--frame", "squash", "--masks"]
        with pytest.raises(SystemExit) as ended:
            main([*line, "--out", str(root / f"{part}.tok"), *like, "--json"])
        assert not ended.value.code
    return root


def table(data: Path, out: Path, *lines: str, protocol: Protocol = SMALL) -> ConvergedTable:
    return ConvergedTable(lines, data / "train", data / "val", out, device="cpu", quiet=True, protocol=protocol)


def test_pixels_and_tokens_of_the_same_images(data: Path, tmp_path: Path) -> None:
    tokens = f"tokens: codes data={data}/train.tok val={data}/val.tok"
    results = table(data, tmp_path / "t", "pixels: pixels", tokens).run()
    assert results["metric"] == "miou"
    first, second = results["rows"]
    folder, store = open_pairs(data / "train"), Store(data / "train.tok")
    assert folder is not None
    assert first["bytes_per_image"] == {
        "images": round(folder.bytes / 12, 1),
        "masks": round(folder.mask_bytes / 12, 1),
    }
    assert second["bytes_per_image"]["masks"] == round(store.column_bytes("mask") / 12, 1)
    assert second["seeds"] == [0, 1]
    trials = [one for one in results["trials"] if one["row"] == "pixels" and one["rate"] == first["rate"]]
    assert first["training_right"] == pytest.approx(np.mean([one["figures"]["train_aacc"] for one in trials]))
    shown = markdown(results)
    assert "validation mIoU (%)" in shown
    assert f"right on {100 * first['training_right']:.1f} % of its training pixels: NOT converged" in shown
    assert (tmp_path / "t/curves.png").read_bytes().startswith(b"\x89PNG")
    shutil.rmtree(tmp_path / "t/runs")  # its results alone are enough
    assert table(data, tmp_path / "t", "pixels: pixels", tokens).run() == results


def test_held_figures_are_those_of_the_held_images(data: Path, tmp_path: Path) -> None:
    results = table(data, tmp_path / "t", "pixels: pixels", protocol=replace(SMALL, seeds=1)).run()
    held = Draw(0, False, 3).held_numbers(np.zeros(12, np.int64), 3, 8)
    for kind in ("images", "masks"):
        (tmp_path / "held" / kind).mkdir(parents=True)
        for number in held:
            shutil.copy(data / f"train/{kind}/{number:03d}.png", tmp_path / "held" / kind)
    for name in ("classes.txt", "dataset.json"):
        shutil.copy(data / "train" / name, tmp_path / "held")
    run = tmp_path / "t/runs/pixels/seed-0-rate-0.001/run"
    figures = Segmenter.open(run, "cpu").evaluate(tmp_path / "held").figures
    assert results["rows"][0]["held_by_rate"]["0.001"] == pytest.approx(figures["miou"])


def test_images_that_do_not_pair_or_suffice_are_refused(data: Path, tmp_path: Path) -> None:
    write_pairs(tmp_path / "fewer", 11)
    with pytest.raises(ConfigError, match="others than those of"):
        table(data, tmp_path / "t", "pixels: pixels", f"b: pixels data={tmp_path}/fewer").run()
    with pytest.raises(ConfigError, match=r"--samples .* and --held 5 are more than"):
        table(data, tmp_path / "t", "pixels: pixels", protocol=replace(SMALL, held=5)).run()
    assert not (tmp_path / "t").exists()
