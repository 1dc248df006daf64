"""`tilework analyze align`: every file and number, for runs on pixels and on codes, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from small_data import write_images
from tilework.analysis import align
from tilework.analysis.align import align_views
from tilework.analysis.explain import Explained
from tilework.augment import CentreCrop, Embed, Normalise, PatchCutMix
from tilework.cli.main import main
from tilework.core.errors import ConfigError, InputError, OutputError
from tilework.data import ImageFolder
from tilework.evaluation.mixing_ratio import correlation, mixing_ratios
from tilework.layers.stems import PatchStemConfig, TokenStemConfig
from tilework.models import ResnetConfig, SwinConfig, VitConfig
from tilework.objectives import ClassifyConfig, TlAlignConfig
from tilework.runs import Run, train
from tilework.tokenizers import VitVqConfig, load_tokenizer, save_tokenizer
from tilework.tokenizers.image_codes import Tokenizing
from tilework.tokenizers.tokenize import tokenize
from tilework.train import FitConfig

FILES = {"mixing.png", "labels.png", "ratio.png", "results.json"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, a tokenizer, a store, runs on both and one that cannot follow mixtures; no test changes them."""
    root = tmp_path_factory.mktemp("align")
    torch.manual_seed(0)
    write_images(root / "images", count=4)
    config = VitVqConfig(patch=4, codes=16, code_dim=4, width=16, depth=1, heads=2)
    save_tokenizer(root / "tokenizer", config.build(3, (32, 32), 0), config, (32, 32))
    tokenizer, card = load_tokenizer(root / "tokenizer")
    tokenize(ImageFolder.open(root / "images"), Tokenizing(tokenizer, card, torch.device("cpu")), root / "x.tok")
    fit = FitConfig(epochs=0, steps=1, batch=6)
    codes = VitConfig(width=16, depth=2, heads=2, pool="mean", stem=TokenStemConfig())
    steps = (Embed(), CentreCrop((6, 6)))
    run = Run(codes, TlAlignConfig(), (*steps, PatchCutMix(2)), steps, fit=fit)
    train(run, root / "x.tok", None, root / "codes", quiet=True)
    pixels = VitConfig(width=16, depth=2, heads=2, stem=PatchStemConfig(8))
    plain = (Normalise(),)
    run = Run(pixels, ClassifyConfig(), plain, plain, size=(32, 32), fit=fit)
    train(run, root / "images", None, root / "pixels", quiet=True)
    swin = SwinConfig(width=8, depths=(1, 1), heads=(1, 2), window=4)
    train(replace(run, model=swin), root / "images", None, root / "swin", quiet=True)
    other = Run(ResnetConfig(18, width=16), ClassifyConfig(), plain, plain, size=(32, 32), fit=fit)
    train(other, root / "images", None, root / "resnet", quiet=True)
    return root


@pytest.mark.parametrize(("run", "data"), [("pixels", "images"), ("swin", "images"), ("codes", "x.tok")])
def test_all_files_and_numbers(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], run: str, data: str
) -> None:
    words = ["analyze", "align", made / run, "--data", made / data, "--out", tmp_path / "v", "--count", "3", "--json"]
    words += ["--tokenizer", made / "tokenizer"] if run == "codes" else []
    with pytest.raises(SystemExit, match="0"):
        main([str(word) for word in words])
    told = json.loads(capsys.readouterr().out)
    assert {path.name for path in (tmp_path / "v").iterdir()} == FILES
    assert all(p.read_bytes()[:4] == b"\x89PNG" for p in (tmp_path / "v").glob("*.png"))
    found = json.loads((tmp_path / "v/results.json").read_text())
    assert found == {name: value for name, value in told.items() if name != "out"}
    assert found["pairs"] == 12
    rules = {"area", "tl_align"} | ({"trans_mix"} if run == "pixels" else set())
    assert set(found["distance"]) == set(found["correlation"]) == rules
    for values in found["distance"].values():
        assert len(values) == 2
        assert all(0 <= value <= 1 for value in values)
    assert all(-1 <= value <= 1 for values in found["correlation"].values() for value in values)
    assert 0 <= found["moved"] <= 1


@pytest.mark.parametrize(("at_once", "parts"), [(5, [5, 5, 2]), (11, [11])])  # one alone has no partner
def test_agreement_is_that_of_the_mixtures_one_by_one(
    made: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, parts: list[int]
) -> None:
    monkeypatch.setattr(align, "PART", at_once)
    one = Explained.open(made / "pixels", made / "images", torch.device("cpu"))
    index, distance, start = align.some(12, 12), [], 0
    for size in parts:
        batch = align.mixable(one, index[start : start + size], torch.device("cpu"))
        ratios = mixing_ratios(one.model, batch.x, align.strategy(batch, PatchCutMix, one.model.grid))
        distance += (ratios.similarity[-1][:, 0] - ratios.own.mean((1, 2))).abs().tolist()
        start += size
    found = align.agreement(one, torch.device("cpu"))
    assert found["pairs"] == len(distance) == sum(parts)
    assert found["distance"]["area"][-1] == pytest.approx(sum(distance) / len(distance), abs=1e-4)


def test_correlation_equals_torch() -> None:
    torch.manual_seed(0)
    one, other = torch.randn(3, 20), torch.randn(3, 20)
    for row, (a, b) in zip(correlation(one, other), zip(one, other, strict=True), strict=True):
        assert torch.allclose(row, torch.corrcoef(torch.stack([a, b]))[0, 1], atol=1e-6)
    assert correlation(torch.ones(1, 4), torch.randn(1, 4)).item() == 0


def test_refusals(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "v"
    with pytest.raises(ConfigError, match="--tokenizer"):
        align_views(made / "codes", made / "x.tok", out)
    with pytest.raises(InputError, match="was trained on images"):
        align_views(made / "pixels", made / "x.tok", out)
    for count in (1, 99):
        with pytest.raises(ConfigError, match=f"--count {count} is not"):
            align_views(made / "pixels", made / "images", out, count=count)
    with pytest.raises(ConfigError, match="cannot track mixed labels"):
        align_views(made / "resnet", made / "images", out)
    assert not out.exists()
    out.mkdir()
    (out / "mine.txt").write_text("")
    with pytest.raises(OutputError):
        align_views(made / "pixels", made / "images", out, count=2)
