"""A part of the data: the same samples every time, larger parts hold smaller ones, and a run sees nothing else."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import tilework.data.images as data_images
from small_data import write_images, write_store
from tilework.augment import CentreCrop, CodeCut, Embed
from tilework.core.batch import Batch, Stage, Target
from tilework.core.distributed import World
from tilework.core.errors import ConfigError, OutputError
from tilework.data import ImageFolder, Part, Source, TokenSource
from tilework.data.part import balanced_part, held_part, part_of
from tilework.layers.stems import PatchStemConfig, TokenPatchStemConfig, TokenStemConfig
from tilework.models import VitConfig
from tilework.objectives import ClassifyConfig, MaskedConfig
from tilework.recipes import recipes
from tilework.runs import Run, evaluate_run, plan, prepare, train
from tilework.store import Store
from tilework.train import FitConfig

CPU = World(0, 1, torch.device("cpu"))
RUN = Run(
    model=VitConfig(width=16, depth=1, heads=2, stem=TokenStemConfig()),
    objective=ClassifyConfig(),
    augment=(Embed(),),
    evaluation=(Embed(),),
    samples=20,
    fit=FitConfig(epochs=2, batch=6),
)


class Numbers:
    """Samples that are their own number."""

    stage: Stage = "ids"
    grid = (1, 1)
    together = 7
    codebook = torch.eye(3)
    classes = ("a", "b")

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.count

    def batch(self, index: np.ndarray) -> Batch:
        self.asked += index.tolist()
        number = torch.from_numpy(index)
        return Batch(number[:, None, None], Target.hard(number % 2), number)


def members(count: int, of: int) -> list[int]:
    part = Part(Numbers(of), count)
    return part.batch(np.arange(len(part))).x.flatten().tolist()


@pytest.mark.parametrize("count", [1, 2, 50, 99, 100])
def test_samples_are_different_ones_in_the_order_of_the_source(count: int) -> None:
    found = members(count, 100)
    assert len(found) == len(set(found)) == count
    assert found == sorted(found)
    assert set(found) <= set(range(100))


def test_larger_parts_hold_smaller_ones() -> None:
    parts = [set(members(count, 60)) for count in range(1, 61)]
    assert all(small < large for small, large in pairwise(parts))


def test_they_are_the_same_every_time() -> None:
    assert members(5, 40) == members(5, 40)
    assert members(8, 1000) == [15, 113, 118, 147, 161, 271, 400, 597]  # golden: stores are cut alike for ever


def test_every_place_is_as_likely_as_any_other() -> None:
    drawn = np.array(members(25_000, 100_000))
    shares = np.histogram(drawn, bins=20, range=(0, 100_000))[0] / 5000
    assert np.abs(shares - 0.25).max() < 5 * (0.25 * 0.75 / 5000) ** 0.5
    for period in (2, 3, 7):  # nor is a class favoured where classes alternate
        assert np.bincount(drawn % period) / len(drawn) == pytest.approx(1 / period, abs=0.01)


def test_samples_keep_their_number_and_what_belongs_to_it() -> None:
    source = Numbers(30)
    part = Part(source, 10)
    batch = part.batch(np.array([7, 0, 7]))
    assert batch.index.tolist() == [part.index[7], part.index[0], part.index[7]]
    assert batch.x.flatten().tolist() == batch.index.tolist() == source.asked
    assert batch.target.ids[:, 0].tolist() == [number % 2 for number in source.asked]


def test_everything_else_is_the_sources() -> None:
    source = Numbers(30)
    part: Source = Part(source, 10)
    assert len(part) == 10
    assert (part.stage, part.grid, part.together, part.classes) == ("ids", (1, 1), 7, ("a", "b"))
    assert part.codebook is source.codebook


@pytest.mark.parametrize("count", [-3, 0, 31])
def test_impossible_parts_are_refused(count: int) -> None:
    with pytest.raises(ConfigError, match=f"{count} samples were asked for, the data have 30: lower 'samples'"):
        Part(Numbers(30), count)


# a whole run


def watch(monkeypatch: pytest.MonkeyPatch, kind: type) -> list[int]:
    """What is read of sources of a kind."""
    asked: list[int] = []
    batch = kind.batch

    def noted(self: Source, index: np.ndarray) -> Batch:
        asked.extend(np.asarray(index).tolist())
        return batch(self, index)

    monkeypatch.setattr(kind, "batch", noted)
    return asked


def test_a_run_trains_on_its_part_alone(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = watch(monkeypatch, TokenSource)
    result = train(RUN, store, None, tmp_path / "run", "cpu", quiet=True)
    assert result.steps == 2 * (20 // 6)
    assert set(asked) <= set(members(20, 48))
    assert len(set(asked)) > 15
    asked.clear()
    train(replace(RUN, samples=0, fit=replace(RUN.fit, epochs=0, steps=8)), store, None, tmp_path / "all", "cpu")
    assert len(set(asked)) == 48, "0 is all"


def test_evaluation_is_on_everything(store: Path, val_store: Path, tmp_path: Path) -> None:
    result = train(RUN, store, val_store, tmp_path / "run", "cpu", quiet=True)
    judged = evaluate_run(tmp_path / "run", val_store)
    assert len(judged.probabilities) == 18
    assert result.metrics["top1"] == pytest.approx(judged.top(1))
    assert len(evaluate_run(tmp_path / "run", store).probabilities) == 48


def test_images_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the images of the part are read at all."""
    images, read = write_images(tmp_path / "images"), []
    decode = data_images.decode_image
    monkeypatch.setattr(
        data_images, "decode_image", lambda path, size, frame="cover": read.append(path) or decode(path, size)
    )
    run = replace(recipes["demo_pixel"].run, samples=10, size=(24, 24))
    run = replace(run, model=replace(RUN.model, stem=PatchStemConfig(8)), augment=run.evaluation)  # type: ignore[call-arg]
    train(replace(run, fit=FitConfig(epochs=1, batch=5)), images, None, tmp_path / "run", "cpu", quiet=True)
    folder = ImageFolder.open(images)
    assert set(read) == {folder.paths[i] for i in members(10, 24)}


def test_the_same_run_goes_on_and_another_part_is_another_run(store: Path, tmp_path: Path) -> None:
    train(RUN, store, None, tmp_path / "run", "cpu", quiet=True)
    weights = (tmp_path / "run/results.json").read_bytes()
    train(RUN, store, None, tmp_path / "run", "cpu", quiet=True)
    assert (tmp_path / "run/results.json").read_bytes() == weights
    with pytest.raises(OutputError, match="another run"):
        train(replace(RUN, samples=21), store, None, tmp_path / "run", "cpu", quiet=True)


def test_what_a_part_cannot_do_is_refused_before_the_first_step(store: Path, tmp_path: Path) -> None:
    few = "a batch cannot be filled by 1 sample"
    for samples, words in ((49, "49 samples were asked for, the data have 48"), (1, few)):
        with pytest.raises(ConfigError, match=words):
            prepare(replace(RUN, samples=samples), store, None, tmp_path / "run", CPU, "x", quiet=True)
    assert not (tmp_path / "run").exists()


def test_plans_count_the_part(store: Path) -> None:
    found = plan(RUN, store, None, "cpu")
    assert (found["samples"], found["steps"], found["classes"]) == (20, 6, 3)


def test_codes_and_classes_are_those_of_the_whole_store(tmp_path: Path) -> None:
    """A part without some class or code: both are kept, so that it can be evaluated on the rest."""
    store = write_store(tmp_path / "x.tok", count=12)
    run = replace(RUN, samples=2, fit=FitConfig(epochs=1, batch=2))
    labels = Store(store).column("label")[members(2, 12)]
    assert len(set(labels.tolist())) < 3
    train(run, store, store, tmp_path / "run", "cpu", quiet=True)
    assert evaluate_run(tmp_path / "run", store).probabilities.shape == (12, 3)


def test_masked_token_modelling_of_a_part(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = watch(monkeypatch, TokenSource)
    run = replace(
        RUN,
        model=replace(RUN.model, stem=TokenPatchStemConfig()),  # type: ignore[call-arg]
        objective=MaskedConfig(width=16, depth=1, heads=2),
        augment=(CodeCut((8, 8)),),
        evaluation=(CentreCrop((8, 8)),),
    )
    train(run, store, None, tmp_path / "run", "cpu", quiet=True)
    assert set(asked) <= set(members(20, 48))


@pytest.mark.parametrize("seed", [0, 7])
def test_balanced_parts_have_as_many_of_each_class(seed: int) -> None:
    labels = np.random.default_rng(0).integers(0, 4, 200)
    part = balanced_part(labels, 4, 42, seed)
    assert np.array_equal(np.bincount(labels[part]), [11, 11, 10, 10])
    assert np.array_equal(part, np.unique(part))
    assert set(balanced_part(labels, 4, 20, seed)) <= set(part)
    held = held_part(len(labels), part, 50, seed)
    assert len(set(held)) == 50
    assert not set(held) & set(part)


def test_seeds_draw_other_parts() -> None:
    assert not np.array_equal(part_of(100, 20, 1), part_of(100, 20))
    assert not np.array_equal(balanced_part(np.arange(100) % 5, 5, 20, 1), balanced_part(np.arange(100) % 5, 5, 20))


def test_impossible_balanced_parts_are_refused() -> None:
    labels = np.array([0, 0, 0, 1])
    with pytest.raises(ConfigError, match="fewer than the 2 classes"):
        balanced_part(labels, 2, 1)
    with pytest.raises(ConfigError, match="class number 1 has 1 samples, and 2"):
        balanced_part(labels, 2, 4)
    with pytest.raises(ConfigError, match=r"lower 'draw\.held'"):
        held_part(4, np.array([0, 1]), 3)
