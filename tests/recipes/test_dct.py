"""From images to a classifier of DCT coefficients, with ColorAdapt and with a TokenAdapt trained by regression."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from small_data import write_images
from tilework.augment.adapter import Adapter, load_adapter
from tilework.core.config import resolve
from tilework.core.errors import ConfigError
from tilework.data import ImageFolder, TokenSource
from tilework.recipes import recipes
from tilework.runs import Artefacts, Run, equip, evaluate_run, export_run, load_exported, train
from tilework.store import Store
from tilework.tokenizers import DctConfig, load_tokenizer, save_tokenizer
from tilework.tokenizers.image_codes import Tokenizing
from tilework.tokenizers.tokenize import tokenize

KEEP = 6


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of 64 px, a tokenizer for them, and stores of 8x8 places."""
    root = tmp_path_factory.mktemp("dct")
    config = DctConfig(quality=60, keep=KEEP)
    save_tokenizer(root / "dct", config.build(3, (64, 64), 0), config, (64, 64))
    tokenizer, card = load_tokenizer(root / "dct")
    for part, count, seed in (("train", 8, 0), ("val", 4, 1)):
        folder = ImageFolder.open(write_images(root / part, count=count, side=64, seed=seed))
        used = Store(root / "train.tok").used if part == "val" else None
        tokenize(folder, Tokenizing(tokenizer, card, torch.device("cpu")), root / f"{part}.tok", used=used)
    return root


def small(name: str, *settings: str) -> Run:
    sizes = ["model.width=32", "model.heads=2", "fit.epochs=0", "fit.steps=6", "fit.batch=8"]
    return resolve(resolve(recipes[name].run, None, sizes), None, settings)


def classifier(name: str) -> Run:
    sizes = ["codes=[8,8]", "augment.0.size=[8,8]", "evaluation.1.size=[8,8]", "model.depth=1"]
    return small(name, *sizes)


def test_the_store_keeps_what_the_tokenizer_gave(root: Path) -> None:
    store, (tokenizer, _) = Store(root / "train.tok"), load_tokenizer(root / "dct")
    assert store.grid == (8, 8, 3 * KEEP)
    source = TokenSource(store)
    assert (source.stage, source.grid) == ("stacks", (8, 8))
    x = source.batch(np.arange(4)).x
    assert x.shape == (4, 3 * KEEP, 8, 8)
    decoded = tokenizer.decode(torch.from_numpy(store.used)[x.long()].permute(0, 2, 3, 1))
    assert torch.equal(decoded, tokenizer.decode(torch.from_numpy(store.used[store.batch(np.arange(4))])))


@pytest.mark.parametrize("name", ["dct_cpu", "dct_colour_cpu"])
def test_a_classifier_learns_is_judged_and_exported(name: str, root: Path, tmp_path: Path) -> None:
    run = classifier(name)
    result = train(run, root / "train.tok", root / "val.tok", tmp_path / "run", quiet=True)
    assert np.isfinite(list(result.metrics.values())).all()
    top = evaluate_run(tmp_path / "run", root / "val.tok").top(1)
    assert top == pytest.approx(result.metrics["top1"])
    assert evaluate_run(tmp_path / "run", root / "val", root / "dct").top(1) == pytest.approx(top)
    export_run(tmp_path / "run", tmp_path / "model")
    logits = load_exported(tmp_path / "model").logits(TokenSource(Store(root / "val.tok")).batch(np.arange(2)).x)
    assert logits.shape == (2, 3)


def test_token_adapt_learns_by_regression_and_moves_coefficients(root: Path, tmp_path: Path) -> None:
    adapt = equip(small("token_adapt_cpu", "fit.steps=40", "fit.optim.lr=0.003"), Artefacts(tokenizer=root / "dct"))
    train(adapt, root / "train", root / "val", tmp_path / "adapt", quiet=True)
    results = json.loads((tmp_path / "adapt/results.json").read_text())
    assert {"identity_error", "flip_error", "flip_grid_error"} <= set(results)
    steps = [json.loads(line) for line in (tmp_path / "adapt/log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in steps if "loss" in line]
    assert losses[-1] < 0.7 * losses[0]
    place = tmp_path / "adapt/token_adapt"
    network, codebook = load_adapter(place)
    assert network.regression
    assert np.array_equal(codebook.vectors, load_tokenizer(root / "dct")[0].codebook)
    store = Store(root / "train.tok")
    adapter = Adapter.open(place, store.codebook)
    moved = adapter(torch.randn(2, 3 * KEEP, 8, 8), torch.eye(2, 3).repeat(2, 1, 1), (4, 4))
    assert moved.shape == (2, 3 * KEEP, 4, 4)
    run = equip(classifier("dctpp_cpu"), Artefacts(adapter=place))
    result = train(run, root / "train.tok", root / "val.tok", tmp_path / "run", quiet=True)
    assert np.isfinite(result.metrics["top1"])
    scaled = resolve(run, None, ["augment.0.standardise=true"])
    with pytest.raises(ConfigError, match="gives vectors as they are"):
        train(scaled, root / "train.tok", None, tmp_path / "no", quiet=True)


def test_what_needs_one_code_at_a_place_is_refused(root: Path, tmp_path: Path) -> None:
    for name in ("seit_cpu", "mtm_cpu", "mtm_adapt_cpu", "mtm_tuned_cpu"):
        with pytest.raises(ConfigError, match="takes one code at a position, and these data have several"):
            train(recipes[name].run, root / "train.tok", None, tmp_path / name, quiet=True)
    with pytest.raises(ConfigError, match="finds no nearest code for positions that have several"):
        train(
            replace(recipes["seitpp_tuned_cpu"].run, codes=None),
            root / "train.tok",
            None,
            tmp_path / "tuned",
            quiet=True,
        )
