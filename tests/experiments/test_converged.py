"""Converged tables: what every row of a seed shares, how rates are chosen, what is known again, what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from time import sleep
from typing import Any

import numpy as np
import pytest

from small_data import write_store
from tilework.augment import Embed
from tilework.cli.main import main
from tilework.core.errors import ConfigError, DamageError, InputError, OutputError
from tilework.core.files import locked
from tilework.data import TokenSource
from tilework.experiments import runner
from tilework.experiments.converged import ConvergedTable, markdown
from tilework.experiments.protocol import Protocol, plateau
from tilework.experiments.table_runs import runs_in
from tilework.layers.stems import TokenPatchStemConfig
from tilework.models import VitConfig
from tilework.objectives import ClassifyConfig
from tilework.recipes import Recipe, recipes
from tilework.runs import Chain, Draw, Link, Run, train
from tilework.store import Store
from tilework.train import FitConfig

SMALL = Protocol(samples=12, passes=2, rates=(1e-3, 1e-2), held=6, seeds=2, looks=2)


def first() -> Run:
    model = VitConfig(width=16, depth=1, heads=2, pool="mean", stem=TokenPatchStemConfig())
    return Run(model, ClassifyConfig(), (Embed(),), (Embed(),), fit=FitConfig(epochs=0, steps=2, batch=6))


def second() -> Run:
    return replace(first(), objective=ClassifyConfig(smoothing=0.3))


@pytest.fixture(autouse=True)
def small_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    for recipe in (first, second):
        monkeypatch.setitem(recipes._entries, recipe.__name__, Recipe(recipe.__name__, "", "", recipe()))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("converged")
    write_store(root / "x.tok")
    write_store(root / "v.tok", count=18, seed=1)
    return root


@pytest.fixture
def titles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of the runs that were trained."""
    found: list[str] = []
    real = runner.train

    def train(*given: Any, **named: Any) -> Any:
        found.append(given[5])
        return real(*given, **named)

    monkeypatch.setattr(runner, "train", train)
    return found


def table(data: Path, out: Path, *lines: str, protocol: Protocol = SMALL) -> ConvergedTable:
    return ConvergedTable(lines, data / "x.tok", data / "v.tok", out, device="cpu", quiet=True, protocol=protocol)


def test_rates_are_chosen_on_held_images_and_the_other_seeds_use_the_best(
    data: Path, tmp_path: Path, titles: list[str]
) -> None:
    results = table(data, tmp_path / "t", "a: first", "b: second").run()
    assert titles[:2] == ["a seed 0 rate 0.001", "a seed 0 rate 0.01"]
    for row in results["rows"]:
        held = {float(rate): value for rate, value in row["held_by_rate"].items()}
        assert set(held) == {1e-3, 1e-2}
        assert row["rate"] == max(sorted(held), key=held.__getitem__)
        assert f"{row['row']} seed 1 rate {row['rate']:g}" in titles
        assert row["seeds"] == [0, 1]
        assert row["training"] is not None
        assert row["mean"] == pytest.approx(np.mean(row["top1"]))
    assert len(titles) == 2 * (2 + 1)
    shared = [b - a for a, b in zip(results["rows"][0]["top1"], results["rows"][1]["top1"], strict=True)]
    assert results["rows"][1]["differences"] == pytest.approx(shared)
    assert results["degrees_of_freedom"] == 1
    shown = markdown(results)
    for row in results["rows"]:
        edge = "lowest" if row["rate"] == 1e-3 else "highest"
        assert f"| {row['row']} | {row['rate']:g}, {edge} tried | " in shown
    assert (tmp_path / "t/curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_goes_on_from_its_results_alone(data: Path, tmp_path: Path, titles: list[str]) -> None:
    before = table(data, tmp_path / "t", "a: first").run()
    shutil.rmtree(tmp_path / "t/runs")
    titles.clear()
    after = table(data, tmp_path / "t", "a: first", "b: second").run()
    assert all(title.startswith("b ") for title in titles)
    assert after["rows"][0]["top1"] == before["rows"][0]["top1"]
    assert [t for t in after["trials"] if t["row"] == "a"] == before["trials"]


def test_processes_with_other_rows_of_one_table_wait_for_each_other(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever one writes its results, another holds the table for a moment."""
    one, held = table(data, tmp_path / "t", "a: first"), 0
    real = ConvergedTable._report

    def report(self: ConvergedTable, *given: Any) -> Any:
        nonlocal held
        there = Event()

        def hold() -> None:
            with locked(tmp_path / "t", wait=True):
                there.set()
                sleep(0.05)

        other = Thread(target=hold)
        other.start()
        there.wait()
        held += 1
        found = real(self, *given)
        other.join()
        return found

    monkeypatch.setattr(ConvergedTable, "_report", report)
    results = one.run()
    assert held == 4  # three runs, and the end
    assert results["rows"][0]["seeds"] == [0, 1]
    held = 0
    table(data, tmp_path / "t", "a: first").run()
    assert held == 1  # nothing was trained: no table is written for each run that is known


def test_seeds_can_be_added_later_and_not_taken_away(data: Path, tmp_path: Path, titles: list[str]) -> None:
    before = table(data, tmp_path / "t", "a: first", "b: second").run()
    titles.clear()
    more = table(data, tmp_path / "t", "a: first", protocol=replace(SMALL, seeds=3)).run()
    assert titles == [f"a seed 2 rate {before['rows'][0]['rate']:g}"]
    assert [row["seeds"] for row in more["rows"]] == [[0, 1, 2], [0, 1]]
    assert more["rows"][0]["top1"][:2] == before["rows"][0]["top1"]
    assert more["rows"][1]["resolved"] is None
    with pytest.raises(OutputError, match=r"other settings \(protocol\.seeds: 3, not 2\)"):
        table(data, tmp_path / "t", "a: first").run()


@pytest.mark.parametrize("damaged", ['{"protocol": []}', '{"protocol": {"seeds": "x"}}', "[]", "{"])
def test_damaged_settings_of_a_table_are_refused(damaged: str, data: Path, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t/settings.json").write_text(damaged)
    with pytest.raises((OutputError, DamageError), match=r"settings\.json"):
        table(data, tmp_path / "t", "a: first").run()


def test_rows_that_a_command_does_not_name_stay(data: Path, tmp_path: Path, titles: list[str]) -> None:
    before = table(data, tmp_path / "t", "a: first", "b: second").run()
    titles.clear()
    after = table(data, tmp_path / "t", "c: first fit.batch=3").run()
    assert all(title.startswith("c ") for title in titles)
    assert [row["row"] for row in after["rows"]] == ["a", "b", "c"]
    for row, now in zip(before["rows"], after["rows"][:2], strict=True):
        assert now == {**row, "resolved": now["resolved"]}
    assert after["rows"][2]["differences"] == pytest.approx(
        [c - a for a, c in zip(after["rows"][0]["top1"], after["rows"][2]["top1"], strict=True)]
    )
    assert [trial for trial in after["trials"] if trial["row"] != "c"] == before["trials"]
    assert "| b | " in (tmp_path / "t/table.md").read_text()


def test_runs_that_are_gone_are_trained_again_on_request(data: Path, tmp_path: Path, titles: list[str]) -> None:
    before = table(data, tmp_path / "t", "a: first", "b: second").run()
    rate = before["rows"][0]["rate"]
    shutil.rmtree(tmp_path / "t/runs/a")
    titles.clear()
    after = replace(table(data, tmp_path / "t", "a: first", "b: second"), restore=True).run()
    assert titles == [f"a seed {seed} rate {rate:g}" for seed in (0, 1)]
    assert after["rows"][0]["top1"] == before["rows"][0]["top1"]
    assert len(runs_in(tmp_path / "t")) == 4


def test_rows_of_a_seed_share_images_and_seeds_do_not(data: Path) -> None:
    source = TokenSource(Store(data / "x.tok"), None)
    classes = len(source.classes)

    def numbers(recipe: Run, seed: int, rate: float) -> list[int]:
        run = SMALL.run(recipe, seed, rate)
        assert isinstance(run, Run)
        assert run.fit.seed == seed
        return run.draw.numbers(source.labels, classes, run.samples).tolist()

    assert numbers(first(), 0, 1e-3) == numbers(second(), 0, 1e-2)
    assert numbers(first(), 0, 1e-3) != numbers(first(), 1, 1e-3)
    kept = numbers(first(), 0, 1e-3)
    counts = np.bincount(source.labels[kept], minlength=classes)
    assert counts.max() - counts.min() <= 1
    held = Draw(0, True, 6).held_numbers(source.labels, classes, 12)
    assert len(held) == 6
    assert not set(held.tolist()) & set(kept)


def test_a_chain_takes_the_protocol_for_its_last_link() -> None:
    run = SMALL.run(Chain((Link("pretrain", first()), Link("tune", second()))), 1, 1e-2)
    assert isinstance(run, Chain)
    before, last = (link.run for link in run.links)
    assert (before.samples, before.fit.steps, before.fit.seed) == (0, 2, 1)
    assert (last.samples, last.fit.epochs, last.fit.steps, last.fit.optim.lr) == (12, 2, 0, 1e-2)


def test_starts_and_maps_can_differ_by_seed(data: Path, tmp_path: Path) -> None:
    row = table(data, tmp_path / "t", "a: first maps=own-{seed}.maps start=before/seed-{seed}")
    parsed = row._row(row.lines[0])
    trial = row._trial(parsed, 2, 1e-3)
    assert isinstance(trial.run, Run)
    assert (trial.run.maps, trial.start) == ("own-2.maps", Path("before/seed-2"))


def test_a_start_that_one_seed_lacks_is_refused_before_anything_runs(
    data: Path, tmp_path: Path, titles: list[str]
) -> None:
    train(first(), data / "x.tok", None, tmp_path / "before/seed-0", "cpu", quiet=True)
    with pytest.raises(InputError, match="seed-1"):
        table(data, tmp_path / "t", f"a: first start={tmp_path}/before/seed-{{seed}}").run()
    assert not titles
    train(first(), data / "x.tok", None, tmp_path / "before/seed-1", "cpu", quiet=True)
    assert table(data, tmp_path / "t", f"a: first start={tmp_path}/before/seed-{{seed}}").plan()["minutes"] > 0
    assert len(table(data, tmp_path / "t", f"a: first start={tmp_path}/before/seed-{{seed}}").run()["trials"]) == 3


def test_the_plateau_is_where_the_figure_stays_near_its_last() -> None:
    def points(*values: float) -> list[dict[str, Any]]:
        return [{"pass": 10 * (i + 1), "validation": value} for i, value in enumerate(values)]

    assert plateau(points(0.2, 0.5, 0.505, 0.5)) == 20
    assert plateau(points(0.5, 0.2, 0.5)) == 30
    assert plateau(points(0.5, 0.5)) == 10
    assert plateau([]) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rates": (1e-3,)}, "nothing to choose"),
        ({"rates": (1e-3, 1e-3)}, "nothing to choose"),
        ({"seeds": 0}, "at least 1"),
    ],
)
def test_impossible_protocols_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        replace(SMALL, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"samples": 2}, "fewer than the"), ({"samples": 10_000}, "of each class"), ({"held": 10_000}, "asked for")],
)
def test_data_that_cannot_give_the_subset_are_refused_before_anything_runs(
    data: Path, tmp_path: Path, titles: list[str], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        table(data, tmp_path / "t", "a: first", protocol=replace(SMALL, **changes)).run()
    assert not titles
    assert not (tmp_path / "t").exists()


def test_other_settings_are_refused_before_anything_runs(data: Path, tmp_path: Path, titles: list[str]) -> None:
    table(data, tmp_path / "t", "a: first").run()
    titles.clear()
    with pytest.raises(OutputError, match=r"other settings \(protocol\.passes: \d+, not 3\)"):
        table(data, tmp_path / "t", "a: first", protocol=replace(SMALL, passes=3)).run()
    with pytest.raises(OutputError, match=r"was trained with objective\.smoothing=[\d.]+, not [\d.]+:"):
        table(data, tmp_path / "t", "a: second").run()
    for seeds in (1, 2):
        with pytest.raises(ConfigError, match="@"):
            table(data, tmp_path / "t", f"a: first @{seeds}").run()
    (tmp_path / "t/results.json").write_text(json.dumps({"rows": []}))
    with pytest.raises(DamageError, match="malformed"):
        table(data, tmp_path / "t", "a: first").run()
    assert not titles


def test_a_row_that_was_named_and_never_trained_may_change(data: Path, tmp_path: Path) -> None:
    table(data, tmp_path / "t", "a: first", "b: second").run()
    results = json.loads((tmp_path / "t/results.json").read_text())
    results["trials"] = [one for one in results["trials"] if one["row"] != "b"]
    (tmp_path / "t/results.json").write_text(json.dumps(results))
    shutil.rmtree(tmp_path / "t/runs/b")
    found = table(data, tmp_path / "t", "b: second objective.smoothing=0.45").run()
    assert [row["seeds"] for row in found["rows"]] == [[0, 1], [0, 1]]
    assert found["settings"]["b"]["objective"]["smoothing"] == 0.45


def test_the_command(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["table", "first", "second", "--protocol", "--samples", "12", "--passes", "1", "--held", "6", "--seeds", "2"]
    line += [
        "--data",
        str(data / "x.tok"),
        "--val",
        str(data / "v.tok"),
        "--out",
        str(tmp_path / "t"),
        "--device",
        "cpu",
    ]

    def run(*more: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main([*line, *more])
        return int(ended.value.code or 0)

    assert run("--rates", "0.001") == 4
    assert "nothing to choose" in capsys.readouterr().err
    assert run("--rates", "0.001", "0.01", "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 6
    assert run("--rates", "0.001", "0.01") == 0
    assert "converged" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "t/runs")
    assert run("--rates", "0.001", "0.01", "--restore") == 0
    assert len(runs_in(tmp_path / "t")) == 4
