"""Lists of runs: seeds, what is not repeated, what is refused, and the summary by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilework.augment import Embed
from tilework.core.errors import DamageError, InputError, OutputError
from tilework.experiments.runner import Outcome, Trial, claim, run_trial, run_trials, summarise, with_seed
from tilework.layers.stems import TokenStemConfig
from tilework.models import VitConfig
from tilework.objectives import ClassifyConfig
from tilework.runs import Chain, Link, Run
from tilework.train import FitConfig


def small(width: int = 16) -> Run:
    vit = VitConfig(width=width, depth=1, heads=2, stem=TokenStemConfig())
    return Run(vit, ClassifyConfig(), (Embed(),), (Embed(),), fit=FitConfig(epochs=0, steps=2, batch=12))


def trial(row: str, seed: int, store: Path, val: Path, width: int = 16) -> Trial:
    return Trial(row, seed, with_seed(small(width), seed), (store,), (val,))


def test_a_list_is_run_once(store: Path, val_store: Path, tmp_path: Path) -> None:
    trials = [trial(row, seed, store, val_store) for row in ("a:1", "b") for seed in (0, 1)]
    seen: list[int] = []
    first = run_trials(trials, tmp_path, "cpu", quiet=True, after=lambda done: seen.append(len(done)))
    again = run_trials(trials, tmp_path, "cpu", quiet=True)
    assert seen == [1, 2, 3, 4]
    assert first == again  # seconds too: nothing was trained again
    assert first[0].metrics == first[2].metrics  # rows share seeds, orders and first weights
    assert first[0].metrics != first[1].metrics
    assert (tmp_path / "runs/a-1/seed-1/run/results.json").is_file()


def test_another_trial_in_its_place_is_refused(store: Path, val_store: Path, tmp_path: Path) -> None:
    run_trial(trial("a", 0, store, val_store), tmp_path, "cpu", quiet=True)
    with pytest.raises(OutputError, match="a run with other settings"):
        run_trial(trial("a", 0, store, val_store, width=32), tmp_path, "cpu", quiet=True)


def test_seeds_reach_every_link() -> None:
    chain = with_seed(Chain((Link("one", small()), Link("two", small()))), 7)
    assert isinstance(chain, Chain)
    assert [link.run.fit.seed for link in chain.links] == [7, 7]


def test_summary_by_hand(store: Path) -> None:
    values = {"first": {0: 0.5, 1: 0.6}, "second": {0: 0.7, 1: 0.8}, "third": {0: 0.55}}
    done = [Outcome(trial(r, s, store, store), {"top1": v}, 1.0) for r, by in values.items() for s, v in by.items()]
    table = summarise(done)
    deviation = (2 * 0.005 / 2) ** 0.5  # two rows of two seeds, 0.1 apart
    assert table["second"]["mean"] == pytest.approx(0.75)
    assert table["second"]["difference"] == pytest.approx(0.2)
    assert table["second"]["resolvable"] == pytest.approx(4.303 * deviation)
    assert table["second"]["resolved"] is False
    assert table["second"]["paired"] == pytest.approx((0.2, 0.0), abs=1e-9)
    assert table["third"]["deviation"] is None
    assert table["third"]["paired"] is None


DAMAGE = ["", "{", "[]", "null", "7", "\xff", "[" * 100_000]


@pytest.mark.parametrize("text", [*DAMAGE, "{}"])
@pytest.mark.parametrize("name", ["trial.json", "run/results.json"])
def test_damaged_files_of_a_trial_are_named(store: Path, val_store: Path, tmp_path: Path, name: str, text: str) -> None:
    one = trial("a", 0, store, val_store)
    run_trial(one, tmp_path, "cpu", quiet=True)
    (tmp_path / one.directory / name).write_text(text, "latin-1")
    with pytest.raises((DamageError, OutputError), match=Path(name).name if text != "{}" else "a"):
        run_trial(one, tmp_path, "cpu", quiet=True)


@pytest.mark.parametrize("figure", ["5.0", "NaN", "null", '"x"'])
def test_a_changed_figure_is_not_taken(store: Path, val_store: Path, tmp_path: Path, figure: str) -> None:
    one = trial("a", 0, store, val_store)
    found = run_trial(one, tmp_path, "cpu", quiet=True)
    file = tmp_path / one.directory / "run/results.json"
    file.write_text(file.read_text().replace(f'"top1": {found.metrics["top1"]}', f'"top1": {figure}'))
    with pytest.raises(DamageError, match=r"results\.json"):
        run_trial(one, tmp_path, "cpu", quiet=True)


@pytest.mark.parametrize("line", ["null", "7", "[" * 100_000])
def test_a_damaged_log_is_named(store: Path, val_store: Path, tmp_path: Path, line: str) -> None:
    one = trial("a", 0, store, val_store)
    run_trial(one, tmp_path, "cpu", quiet=True)
    (tmp_path / one.directory / "run/log.jsonl").write_text(line + "\n")
    with pytest.raises(InputError, match="log"):
        run_trial(one, tmp_path, "cpu", quiet=True)


@pytest.mark.parametrize("text", DAMAGE)
def test_damaged_settings_of_a_table_are_named(tmp_path: Path, text: str) -> None:
    claim(tmp_path, {"data": "x", "rates": (0.1, 0.2)}, "table")
    claim(tmp_path, {"data": "x", "rates": (0.1, 0.2)}, "table")
    (tmp_path / "settings.json").write_text(text, "latin-1")
    with pytest.raises(DamageError, match=r"settings\.json"):
        claim(tmp_path, {"data": "x"}, "table")


def test_what_killed_processes_left_of_a_trial_is_removed(store: Path, val_store: Path, tmp_path: Path) -> None:
    one = trial("a", 0, store, val_store)
    run_trial(one, tmp_path, "cpu", quiet=True)
    left = tmp_path / one.directory / ".trial.json.0123abcd.tmp"
    left.write_bytes(b"half")
    run_trial(one, tmp_path, "cpu", quiet=True)
    assert not left.exists()
