"""The loop: golden losses, resume to the bit, skipped steps, accumulation, averaged weights, signals."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tilework.augment import Embed, Flip, RandomResizedCrop
from tilework.augment.scale import Scale
from tilework.core.batch import Batch
from tilework.core.distributed import World
from tilework.core.errors import ConfigError, Stopped, TrainingError
from tilework.core.rng import Draws
from tilework.data import TokenSource
from tilework.layers.stems import TokenStemConfig
from tilework.models import VitConfig
from tilework.objectives import ClassifyConfig, Objective, ReconstructConfig
from tilework.runs import Run
from tilework.runs.job import prepare
from tilework.store import Store
from tilework.tokenizers import VitVqConfig
from tilework.train import FitConfig, Job, OptimConfig, ScheduleConfig, fit, time_steps

CPU = World(0, 1, torch.device("cpu"))


def tiny(**settings: object) -> Run:
    base = FitConfig(epochs=3, batch=12, log_every=1, optim=OptimConfig(lr=2e-3, clip=1.0))
    return Run(
        model=VitConfig(width=16, depth=2, heads=2, drop_path=0.2, stem=TokenStemConfig()),
        objective=ClassifyConfig(),
        augment=(Embed(), RandomResizedCrop(size=(8, 8))),
        evaluation=(Embed(),),
        fit=replace(base, **settings),
    )


def job(run: Run, store: Path, out: Path, val: Path | None = None) -> Job:
    return prepare(run, store, val, out, CPU, "test", quiet=True)


def losses(out: Path) -> list[float]:
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_golden_losses(store: Path, tmp_path: Path) -> None:
    fit(job(tiny(), store, tmp_path / "run"))
    golden = [
        1.0984792,
        1.1155282,
        1.0909419,
        1.0866441,
        1.0605537,
        1.0216748,
        1.0092940,
        0.9978043,
        0.9375150,
        0.9303060,
    ]
    assert losses(tmp_path / "run")[:10] == pytest.approx(golden, abs=1e-5)


def tokenizer_run(images: Path, out: Path, **settings: object) -> Job:
    run = Run(
        model=VitVqConfig(patch=4, codes=64, code_dim=32, width=16, depth=1, heads=2),
        objective=ReconstructConfig(warm_steps=4, revive_every=3),
        augment=(Scale(), Flip()),
        evaluation=(Scale(),),
        size=(64, 64),
        fit=FitConfig(epochs=0, steps=12, batch=12, save_every=1, **settings),
    )
    return prepare(run, images, None, out, CPU, "test", quiet=True)


@pytest.mark.parametrize("threads", [1, 2])
def test_tokenizer_training_agrees_exactly_and_resumes(images: Path, tmp_path: Path, threads: int) -> None:
    """Gradients of the codebook are sums over many places: their order must not depend on threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = weights(fit(tokenizer_run(images, tmp_path / "a")).model)
        assert_same(whole, weights(fit(tokenizer_run(images, tmp_path / "b")).model))
        for step in (4, 7):  # where the codebook starts, and where codes are revived
            killed = tokenizer_run(images, tmp_path / f"c{step}")

            def kill(done: int, step: int = step) -> None:
                if done == step:
                    raise KeyboardInterrupt

            killed.after_step = kill
            with pytest.raises(KeyboardInterrupt):
                fit(killed)
            assert_same(whole, weights(fit(tokenizer_run(images, tmp_path / f"c{step}")).model))
    finally:
        torch.set_num_threads(before)


def test_two_runs_agree_exactly(store: Path, tmp_path: Path) -> None:
    a = fit(job(tiny(), store, tmp_path / "a"))
    b = fit(job(tiny(), store, tmp_path / "b"))
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert_same(weights(a.model), weights(b.model))


class Kill(BaseException):
    pass


@pytest.mark.parametrize("name", ["adamw", pytest.param("sgd", marks=pytest.mark.slow)])
def test_killed_at_any_step_and_resumed_is_bit_identical(
    name: str, store: Path, val_store: Path, tmp_path: Path
) -> None:
    run = tiny(save_every=2, ema=0.9)
    run = replace(run, fit=replace(run.fit, optim=replace(run.fit.optim, name=name)))
    whole = fit(job(run, store, tmp_path / "whole", val_store))
    total = whole.steps
    for kill_at in range(1, total):
        out = tmp_path / f"killed{kill_at}"
        first = job(run, store, out, val_store)

        def kill(step: int, kill_at: int = kill_at) -> None:
            if step == kill_at:
                raise Kill

        first.after_step = kill
        with pytest.raises(Kill):
            fit(first)
        resumed = fit(job(run, store, out, val_store))
        assert_same(weights(whole.model), weights(resumed.model))
        assert resumed.metrics == whole.metrics
        assert losses(out) == losses(tmp_path / "whole")  # no step stands twice in the log


def test_resuming_a_finished_run_changes_nothing(store: Path, val_store: Path, tmp_path: Path) -> None:
    first = fit(job(tiny(), store, tmp_path / "run", val_store))
    again = fit(job(tiny(), store, tmp_path / "run", val_store))
    assert_same(weights(first.model), weights(again.model))
    assert again.metrics == first.metrics


def test_training_learns(store: Path, val_store: Path, tmp_path: Path) -> None:
    result = fit(job(tiny(epochs=25), store, tmp_path / "run", val_store))
    assert result.metrics["top1"] > 0.8


def test_accumulation_equals_the_whole_batch(store: Path, tmp_path: Path) -> None:
    run = tiny()
    run = replace(run, model=replace(run.model, drop_path=0.0))
    whole = fit(job(run, store, tmp_path / "whole"))
    parts = fit(job(replace(run, fit=replace(run.fit, accumulate=3)), store, tmp_path / "parts"))
    for name, value in weights(whole.model).items():
        torch.testing.assert_close(weights(parts.model)[name], value, atol=2e-4, rtol=0)


def test_averaged_weights_are_the_slow_formula(store: Path, tmp_path: Path) -> None:
    seen: list[dict[str, Tensor]] = []
    one = job(tiny(ema=0.8, epochs=1), store, tmp_path / "run")
    one.after_step = lambda step: seen.append(weights(one.objective.model))
    result = fit(one)
    average = seen[0]
    for later in seen[1:]:
        average = {name: 0.8 * average[name] + 0.2 * later[name] for name in average}
    for name, value in weights(result.model).items():
        torch.testing.assert_close(value, average[name])


def test_bf16_runs_and_stays_near(store: Path, tmp_path: Path) -> None:
    fit(job(tiny(epochs=1), store, tmp_path / "a"))
    fit(job(tiny(epochs=1, precision="bf16"), store, tmp_path / "b"))
    assert losses(tmp_path / "b") == pytest.approx(losses(tmp_path / "a"), abs=0.05)
    assert losses(tmp_path / "b") != losses(tmp_path / "a")


@pytest.mark.parametrize("able", [False, True])
def test_slow_bf16_is_said(
    able: bool, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("tilework.train.fit"), "has_bf16", lambda: able)
    one = job(tiny(epochs=0, steps=1, precision="bf16"), store, tmp_path / "run")
    one.quiet = False
    fit(one)
    assert ("no instructions for bf16: fit.precision=fp32" in capsys.readouterr().err) is not able


class Poisoned(Objective):
    """A loss that is not a number at some steps."""

    def __init__(self, inner: Objective, bad: set[int]) -> None:
        super().__init__()
        self.inner, self.model, self.bad = inner, inner.model, bad

    def forward(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        out = self.inner(batch, draws)
        return {"loss": out["loss"] * float("nan")} if draws.step in self.bad else out


def poisoned(store: Path, out: Path, bad: set[int], **settings: object) -> Job:
    one = job(tiny(**settings), store, out)
    one.objective = Poisoned(one.objective, bad)
    return one


@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize("bad", [0, 3])
def test_a_bad_step_is_skipped_and_its_samples_saved(name: str, bad: int, store: Path, tmp_path: Path) -> None:
    one = poisoned(store, tmp_path / "run", {bad})
    one.config = replace(one.config, optim=replace(one.config.optim, name=name))
    before_after: list[dict[str, Tensor]] = [weights(one.objective.model)]
    one.after_step = lambda step: before_after.append(weights(one.objective.model))
    fit(one)
    assert_same(before_after[bad], before_after[bad + 1])
    assert all(value.isfinite().all() for value in before_after[-1].values())
    line = json.loads((tmp_path / "run/nonfinite-0.jsonl").read_text())
    assert line["step"] == bad + 1
    assert len(line["samples"]) == 12


def test_skipped_steps_are_said_and_counted(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = poisoned(store, tmp_path / "run", {1, 3}, epochs=0, steps=5)
    one.quiet = False
    result = fit(one)
    said = [line for line in capsys.readouterr().err.splitlines() if "skipped" in line]
    assert said[0] == "tilework: step 2 is skipped: its gradients are not finite"
    assert "2 of 5 steps were skipped" in said[1]
    assert len(said) == 2, "the first, and the sum"
    assert result.summary["skipped_steps"] == 2


class Exploding(Poisoned):
    """A loss that grows twentyfold at some steps."""

    def forward(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        out = self.inner(batch, draws)
        return {"loss": out["loss"] * 20} if draws.step in self.bad else out


@pytest.mark.parametrize(("bad", "told"), [({22, 23}, 1), (set(), 0)])
def test_a_loss_that_explodes_is_said_once(
    bad: set[int], told: int, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = job(tiny(epochs=0, steps=25), store, tmp_path / "run")
    one.objective, one.quiet = Exploding(one.objective, bad), False
    fit(one)
    said = [line for line in capsys.readouterr().err.splitlines() if "the loss rose from" in line]
    assert len(said) == told
    if told:
        assert "at step 23: lower fit.optim.lr" in said[0]
        assert "--find-lr" in said[0]


def test_many_bad_steps_stop_the_run(store: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="3 consecutive steps, up to step 5"):
        fit(poisoned(store, tmp_path / "run", {2, 3, 4, 5, 6}, patience=3))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_stops(number: signal.Signals, store: Path, tmp_path: Path) -> None:
    whole = fit(job(tiny(), store, tmp_path / "whole"))
    first = job(tiny(), store, tmp_path / "run")
    first.after_step = lambda step: os.kill(os.getpid(), number) if step == 5 else None
    with pytest.raises(Stopped, match="after step 6 of 12") as stopped:
        fit(first)
    assert stopped.value.exit_code == 75
    resumed = fit(job(tiny(), store, tmp_path / "run"))
    assert_same(weights(whole.model), weights(resumed.model))


@pytest.mark.parametrize("step", [4, 5, 7, 10, 11])
def test_a_stopped_run_keeps_the_checkpoints_of_an_undisturbed_one(step: int, store: Path, tmp_path: Path) -> None:
    def kept(name: str) -> list[str]:
        return sorted(path.name for path in (tmp_path / name / "checkpoints").iterdir())

    fit(job(tiny(save_every=3), store, tmp_path / "whole"))
    first = job(tiny(save_every=3), store, tmp_path / "run")
    first.after_step = lambda done: os.kill(os.getpid(), signal.SIGINT) if done == step - 1 else None
    with pytest.raises(Stopped):
        fit(first)
    assert f"step-{step:08d}" in kept("run")
    fit(job(tiny(save_every=3), store, tmp_path / "run"))
    assert kept("run") == kept("whole") == ["latest", "step-00000009", "step-00000012"]


def test_a_signal_during_the_last_evaluation_is_not_lost(store: Path, tmp_path: Path) -> None:
    one = job(tiny(evaluate_every=0), store, tmp_path / "run")
    one.evaluate = lambda model: os.kill(os.getpid(), signal.SIGINT) or {"top1": 0.5}
    assert fit(one).steps == 12
    assert one.stop == [signal.SIGINT]


def test_old_checkpoints_are_removed(store: Path, tmp_path: Path) -> None:
    fit(job(tiny(save_every=1, keep=3), store, tmp_path / "run"))
    kept = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
    assert kept == ["latest", "step-00000010", "step-00000011", "step-00000012"]


def test_batches_that_do_not_split_are_refused(store: Path, tmp_path: Path) -> None:
    one = job(tiny(), store, tmp_path / "run")
    one.world = World(0, 50, torch.device("cpu"))
    with pytest.raises(ConfigError, match="50 processes"):
        fit(one)


def test_time_steps_counts_all_steps(store: Path, tmp_path: Path) -> None:
    seconds, steps = time_steps(job(tiny(), store, tmp_path / "run"))
    assert steps == 12
    assert seconds > 0


def test_without_validation_there_are_no_metrics(store: Path, tmp_path: Path) -> None:
    assert fit(job(tiny(epochs=1), store, tmp_path / "run")).metrics == {}


def test_source_of_the_store_is_used(store: Path, tmp_path: Path) -> None:
    one = job(tiny(), store, tmp_path / "run")
    assert isinstance(one.source, TokenSource)
    assert len(one.source) == len(Store(store))
    assert ScheduleConfig().name == "cosine"
