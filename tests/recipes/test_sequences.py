"""Codes without places: what works on places is refused with the reason, the rest trains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilework.augment import Augment, CutMix, Embed, Flip, RandomResizedCrop, TokenEda
from tilework.core.codebook import Codebook
from tilework.core.config import resolve
from tilework.core.errors import ConfigError
from tilework.data import TokenSource
from tilework.models.token_adapt import TokenAdaptModelConfig
from tilework.recipes import recipes
from tilework.runs import Run, evaluate_run, train
from tilework.runs.build import check_data
from tilework.store import Store, StoreWriter
from tilework.tokenizers import DecodeEncode, TitokConfig, save_tokenizer
from tilework.tokenizers.titok import SideConfig


def write_sequences(path: Path, count: int = 48, length: int = 10, seed: int = 0) -> Path:
    """Sequences whose classes prefer different codes."""
    rng = np.random.default_rng(seed)
    codebook = np.random.default_rng(7).normal(size=(16, 8)).astype(np.float32)
    labels = np.arange(count) % 3
    ids = np.where(rng.random((count, length)) < 0.6, labels[:, None] * 2, rng.integers(0, 16, (count, length)))
    with StoreWriter(path, codebook, ["a", "b", "c"], codec="packed") as writer:
        writer.add(ids, labels, [f"{i}.png" for i in range(count)])
    return path


def small() -> Run:
    settings = ["model.width=32", "model.depth=1", "model.heads=2", "fit.steps=60", "fit.batch=24"]
    return resolve(recipes["sequence_cpu"].run, None, [*settings, "fit.schedule.warmup_steps=5", "fit.optim.lr=0.003"])


def test_the_recipe_learns_from_sequences(tmp_path: Path) -> None:
    data, val = write_sequences(tmp_path / "a.tok"), write_sequences(tmp_path / "b.tok", seed=1)
    assert Store(data).batch(np.arange(2)).shape == (2, 10)
    result = train(small(), data, val, tmp_path / "run", "cpu", quiet=True)
    assert result.model.grid == (1, 10)  # a token for every code
    assert evaluate_run(tmp_path / "run", val, "cpu").top(1) > 0.6  # a third by chance


@pytest.mark.parametrize("step", [CutMix(1.0), Flip(), RandomResizedCrop((1, 8)), TokenEda(0.2, 0.2)], ids=str)
def test_steps_on_places_are_refused(step: Augment, tmp_path: Path) -> None:
    data = write_sequences(tmp_path / "a.tok")
    before = isinstance(step, TokenEda)
    run = replace(small(), augment=(step, Embed()) if before else (Embed(), step))
    name = Augment.choices.name_of(type(step))
    with pytest.raises(
        ConfigError, match=f"'{name}' works on positions in the image, and a sequence of 10 codes has none"
    ):
        check_data(run, TokenSource(Store(data)), None, data, None)


def test_synonyms_need_no_places(tmp_path: Path) -> None:
    data = write_sequences(tmp_path / "a.tok")
    check_data(replace(small(), augment=(TokenEda(0.3, 0.0), Embed())), TokenSource(Store(data)), None, data, None)


@pytest.mark.parametrize("name", ["seit_cpu", "seit_plain_cpu", "demo_token"])
def test_recipes_with_geometry_are_refused_by_it(name: str, tmp_path: Path) -> None:
    data = write_sequences(tmp_path / "a.tok")
    with pytest.raises(ConfigError, match="works on positions in the image"):
        check_data(recipes[name].run, TokenSource(Store(data)), None, data, None)


def test_tokenizers_of_sequences_are_refused_where_places_matter(tmp_path: Path) -> None:
    side = SideConfig(64, 1)
    config = TitokConfig(6, 12, 4, 4, 2, side, side, None)
    model = config.build(3, (8, 8), 0)
    save_tokenizer(tmp_path / "titok", model, config, (8, 8))
    with pytest.raises(ConfigError, match="a sequence of 6, without positions"):
        DecodeEncode(tokenizer=str(tmp_path / "titok")).build(Codebook.of(model.codebook.detach()))
    adapt = replace(recipes["token_adapt_cpu"].run.objective, tokenizer=str(tmp_path / "titok"))
    network = TokenAdaptModelConfig(4, 8, 2).build(3, (8, 8), 0)
    with pytest.raises(ConfigError, match="a sequence of 6, without positions"):
        adapt.build(network)
