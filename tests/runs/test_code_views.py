"""Other scales and mirror images for runs on codes: through TokenAdapt, from pixels, or naive."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional as F

from small_data import write_pairs
from tilework.augment import Embed, Normalise
from tilework.augment.adapter import save_adapter
from tilework.augment.affine import warp
from tilework.augment.requantise import nearest_codes
from tilework.cli.main import main
from tilework.evaluation.dense_inference import Inference
from tilework.layers.stems import PatchStemConfig, TokenPatchStemConfig
from tilework.layers.token_adapt import TokenAdaptNetwork
from tilework.models import LinearSegmenterConfig, VitConfig
from tilework.objectives import SegmentConfig
from tilework.runs import Run, train
from tilework.runs.code_views import CodeViews
from tilework.runs.segment import Segmenter
from tilework.tokenizers import VitVqConfig, load_tokenizer, save_tokenizer
from tilework.train import FitConfig, OptimConfig


def run(line: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(line)
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, a tokenizer that takes any size, a store, a TokenAdapt, and a run on codes."""
    root = tmp_path_factory.mktemp("views")
    write_pairs(root / "val", 3)
    torch.manual_seed(0)
    config = VitVqConfig(patch=4, codes=32, code_dim=8, width=16, depth=1, heads=2, mixing="convolution")
    tokenizer = config.build(3, (40, 56), 0)
    save_tokenizer(root / "tokenizer", tokenizer, config, (40, 56))
    line = ["tokenize", str(root / "val"), "--tokenizer", str(root / "tokenizer"), "--frame", "squash", "--masks"]
    assert run([*line, "--out", str(root / "val.tok"), "--json"]) == 0
    network = TokenAdaptNetwork(8, width=16, heads=2)
    save_adapter(root / "adapter", network, tokenizer.codebook.detach(), {})
    vit = VitConfig(width=16, depth=2, heads=2, stem=TokenPatchStemConfig())
    fit = FitConfig(epochs=0, steps=4, batch=3, optim=OptimConfig(lr=1e-2))
    codes = Run(LinearSegmenterConfig(vit), SegmentConfig(auxiliary=0), (Embed(),), (Embed(),), frame="squash", fit=fit)
    train(codes, root / "val.tok", None, root / "run", quiet=True)
    stem = PatchStemConfig(8)
    pixels = replace(codes, model=LinearSegmenterConfig(replace(vit, stem=stem)), size=(40, 56))
    pixels = replace(pixels, augment=(Normalise(),), evaluation=(Normalise(),))
    train(pixels, root / "val", None, root / "pixels", quiet=True)
    return root


class Exact:
    """Codes moved as a grid: what TokenAdapt would give if codes were pixels."""

    vectors = torch.eye(6)

    def __call__(self, z: Tensor, affine: Tensor, size: tuple[int, int]) -> Tensor:
        return nearest_codes(warp(z, affine, size), self.vectors)


def test_codes_are_mirrored_from_left_to_right_and_scaled() -> None:
    adapter: Any = Exact()
    views = CodeViews(lambda ids: F.one_hot(ids.long(), 6).permute(0, 3, 1, 2).float(), adapter)
    ids = torch.randint(0, 6, (2, 4, 6), generator=torch.Generator().manual_seed(0)).int()
    assert torch.equal(views.see(ids, (4, 6), False), views.prepare(ids))
    assert torch.equal(views.see(ids, (4, 6), True), views.prepare(ids.flip(2)))
    larger = views.see(ids, (12, 18), False).argmax(1)
    assert torch.equal(larger[:, 1::3, 1::3], ids.long())  # the middle of each code is that code
    naive = CodeViews(views.prepare, None)
    assert torch.equal(naive.see(ids, (4, 6), True), views.prepare(ids).flip(3))
    assert naive.see(ids, (8, 6), False).shape == (2, 6, 8, 6)


def test_views_from_pixels_are_encoded_one_by_one(data: Path) -> None:
    segmenter = Segmenter.open(data / "run", "cpu", Inference("whole", (0.5, 1.0), True), data / "tokenizer")
    photograph = Image.open(data / "val/images/001.png").convert("RGB")
    found = segmenter.scores(photograph)
    tokenizer, _ = load_tokenizer(data / "tokenizer")
    codebook, network = segmenter.trained.codebook, segmenter.trained.network
    assert codebook is not None
    number = {int(code): i for i, code in enumerate(codebook.used)}
    total = torch.zeros(1, 3, 10, 14)
    for height, width in ((24, 32), (40, 56)):  # 5 and 7 codes become 6 and 8: whole patches of 2x2
        for mirrored in (False, True):
            small = photograph.resize((width, height), Image.Resampling.BICUBIC)
            small = ImageOps.mirror(small) if mirrored else small
            x = torch.from_numpy(np.array(small)).permute(2, 0, 1)[None] / 255
            with torch.no_grad():
                ids = tokenizer.eval().encode(x)
                vectors = np.stack([codebook.vectors[number[int(code)]] for code in ids.flatten()])
                z = torch.from_numpy(vectors).view(1, height // 4, width // 4, 8).permute(0, 3, 1, 2)
                logits = network(z).logits
            logits = F.interpolate(logits, (height // 4, width // 4), mode="bilinear")
            logits = F.interpolate(logits.flip(3) if mirrored else logits, (10, 14), mode="bilinear")
            total += logits.softmax(1) / 4
    wanted = F.interpolate(total, (40, 56), mode="bilinear")
    assert torch.allclose(found, wanted, atol=1e-5)


def test_the_command_sees_codes_in_three_ways(data: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = ["eval", str(data / "run"), "--scales", "0.5", "1", "--flip", "--json", "--data"]
    for more in (
        [str(data / "val.tok"), "--adapter", str(data / "adapter"), "--out", str(tmp_path / "masks")],
        [str(data / "val.tok"), "--naive"],
        [str(data / "val"), "--out", str(tmp_path / "encoded")],
        [str(data / "val"), "--adapter", str(data / "adapter"), "--mode", "slide"],
    ):
        assert run([*line, *more]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["images"], shown["flip"], shown["scales"]) == (3, True, [0.5, 1.0])
        assert 0 <= shown["miou"] <= 1
    mask = np.asarray(Image.open(tmp_path / "encoded/masks/images-001.png"))
    segmenter = Segmenter.open(data / "run", "cpu", Inference("whole", (0.5, 1.0), True))
    assert np.array_equal(mask, segmenter.segment(Image.open(data / "val/images/001.png").convert("RGB")))


@pytest.mark.parametrize(
    ("run_name", "more", "said"),
    [
        ("run", ["--scales", "0.5"], "give --adapter TOKEN_ADAPT, the images themselves as --data, or --naive"),
        ("run", ["--flip", "--naive", "--adapter", "adapter"], "two ways to see codes"),
        ("run", ["--naive"], "one scale without --flip needs neither"),
        ("run", ["--flip", "--adapter", "tokenizer"], "is a tokenizer, not a TokenAdapt"),
        ("pixels", ["--flip", "--naive"], "are for runs on tokens"),
    ],
)
def test_ways_that_do_not_fit_are_refused(
    data: Path, capsys: pytest.CaptureFixture[str], run_name: str, more: list[str], said: str
) -> None:
    more = [str(data / word) if word in ("adapter", "tokenizer") else word for word in more]
    assert run(["eval", str(data / run_name), "--data", str(data / "val.tok"), *more]) > 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
