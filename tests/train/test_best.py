"""The best checkpoint and early stopping, also where a run resumes."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from small_data import GRID
from tilework.augment import CentreCrop, Embed
from tilework.core.errors import InputError
from tilework.layers.stems import TokenStemConfig
from tilework.models import VitConfig
from tilework.objectives import ClassifyConfig
from tilework.runs import Run, evaluate_run, train
from tilework.train import FitConfig, OptimConfig
from tilework.train.best import Best
from tilework.train.checkpoint import best_checkpoint, latest_checkpoint

loop = import_module("tilework.train.fit")  # the name is also that of its function
RUN = Run(
    model=VitConfig(width=16, depth=1, heads=2, stem=TokenStemConfig()),
    objective=ClassifyConfig(),
    augment=(Embed(standardise=True),),
    evaluation=(Embed(standardise=True), CentreCrop(GRID)),
    fit=FitConfig(epochs=6, batch=12, keep=1, optim=OptimConfig(lr=0.05)),
)


@pytest.mark.parametrize(
    ("higher", "values", "step", "stale"),
    [(True, [0.1, 0.3, 0.3, 0.2], 2, 2), (False, [0.1, 0.3, 0.05], 3, 0), (True, [float("nan"), 0.2], 2, 0)],
)
def test_best_follows_one_figure(higher: bool, values: list[float], step: int, stale: int) -> None:
    best = Best("top1", higher)
    for number, value in enumerate(values, 1):
        best.see(number, {"top1": value})
    again = Best("top1", higher, [{"step": i, "val_top1": v} for i, v in enumerate(values, 1)])
    assert (best.step, best.stale) == (again.step, again.stale) == (step, stale)


def test_the_best_checkpoint_is_kept_beside_the_latest(store: Path, val_store: Path, tmp_path: Path) -> None:
    train(RUN, store, val_store, tmp_path / "run", "cpu", quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    judged = [(line["val_top1"], line["step"]) for line in lines if "val_top1" in line]
    value = max(judged)[0]
    step = next(step for found, step in judged if found == value)  # the first of equal ones
    folder = tmp_path / "run/checkpoints"
    assert best_checkpoint(folder) == folder / f"step-{step:08d}"
    assert latest_checkpoint(folder) == folder / "step-00000024"
    assert len(list(folder.glob("step-*"))) == len({step, 24})
    assert evaluate_run(tmp_path / "run", val_store, best=True).top(1) == pytest.approx(value, abs=1e-6)


def test_early_stopping_ends_and_stays_ended(store: Path, val_store: Path, tmp_path: Path) -> None:
    still = replace(RUN, fit=replace(RUN.fit, early_stop=2, optim=OptimConfig(lr=0.0)))
    for _ in range(2):  # the second time nothing is left to do
        result = train(still, store, val_store, tmp_path / "run", "cpu", quiet=True)
        assert (result.steps, result.stopped_early) == (12, True)
    found = json.loads((tmp_path / "run/results.json").read_text())
    assert (found["steps"], found["stopped_early"], found["skipped_steps"]) == (12, True, 0)


def test_without_validation_there_is_no_best(store: Path, tmp_path: Path) -> None:
    train(replace(RUN, fit=replace(RUN.fit, epochs=1)), store, None, tmp_path / "run", "cpu", quiet=True)
    with pytest.raises(InputError, match="has no best checkpoint"):
        evaluate_run(tmp_path / "run", store, best=True)


def test_an_exploding_loss_is_said_once(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "FIRST", 2)
    monkeypatch.setattr(loop, "EXPLODED", 0.1)  # any loss has exploded by this measure
    train(RUN, store, None, tmp_path / "run", "cpu")
    assert capsys.readouterr().err.count("lower fit.optim.lr, set fit.optim.clip=1, or try --find-lr") == 1
