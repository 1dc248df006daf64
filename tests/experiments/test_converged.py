"""Converged tables: what every row of a seed shares, how rates are chosen, what is known again, what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from time import sleep
from typing import Any

import numpy as np
import pytest
from PIL import Image

from small_data import write_store
from small_images import gradient, put
from tilework.augment import Embed, Normalise
from tilework.cli.main import main
from tilework.core.errors import ConfigError, DamageError, InputError, OutputError, TrainingError
from tilework.core.files import locked
from tilework.data import TokenSource
from tilework.experiments import runner
from tilework.experiments.converged import ConvergedTable, markdown
from tilework.experiments.protocol import Protocol, plateau
from tilework.experiments.table_runs import runs_in
from tilework.layers.stems import PatchStemConfig, TokenPatchStemConfig
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
    real = ConvergedTable._record

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

    monkeypatch.setattr(ConvergedTable, "_record", report)
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


def test_a_restored_run_that_was_stopped_goes_on(data: Path, tmp_path: Path, titles: list[str]) -> None:
    """A directory without a result counted as restored, and other commands evaluated the half-trained model."""
    before = table(data, tmp_path / "t", "a: first").run()
    rate, lost = before["rows"][0]["rate"], tmp_path / f"t/runs/a/seed-1-rate-{before['rows'][0]['rate']:g}"
    (lost / "run/results.json").unlink()
    with pytest.raises(InputError, match="is gone or unfinished"):
        runs_in(tmp_path / "t")
    titles.clear()
    after = replace(table(data, tmp_path / "t", "a: first"), restore=True).run()
    assert titles == [f"a seed 1 rate {rate:g}"]
    assert after["rows"] == before["rows"]
    assert len(runs_in(tmp_path / "t")) == 2


def test_restored_runs_change_neither_rate_nor_figures(
    data: Path, tmp_path: Path, titles: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Another machine rounds otherwise: its figures are said, those of results.json stay."""
    table(data, tmp_path / "t", "a: first").run()
    file = tmp_path / "t/results.json"
    results = json.loads(file.read_text())
    for trial in results["trials"]:
        trial["figures"]["held_top1"] = 0.9 if trial["rate"] == SMALL.rates[0] else 0.8
        trial["figures"]["top1"] = 0.123
    file.write_text(json.dumps(results))
    shutil.rmtree(tmp_path / "t/runs")
    titles.clear()
    again = replace(table(data, tmp_path / "t", "a: first"), restore=True, quiet=False, protocol=SMALL)
    rows = table(data, tmp_path / "t", "a: first").run()["rows"]  # which lacks seed 1 of the rate, if it changed
    shutil.rmtree(tmp_path / "t/runs", ignore_errors=True)
    titles.clear()
    after = again.run()
    assert titles == [f"a seed {seed} rate {SMALL.rates[0]:g}" for seed in (0, 1)]
    assert after["rows"][0]["rate"] == rows[0]["rate"] == SMALL.rates[0]
    assert after["rows"][0]["top1"][0] == 0.123
    assert "this time, 0.1230 in results.json" in capsys.readouterr().err


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("key", ["start", "data", "val"])
def test_a_row_with_another_start_or_other_data_is_refused(
    data: Path, tmp_path: Path, titles: list[str], key: str, older: bool
) -> None:
    """It took the figures of the former for its own."""
    out, other = tmp_path / "t", tmp_path / "other"
    table(data, out, "a: first").run()
    if older:  # results that have a row's line alone
        results = json.loads((out / "results.json").read_text())
        for row in results["rows"]:
            for name in ("start", "data", "val", "samples"):
                del row[name]
        (out / "results.json").write_text(json.dumps(results))
    if key == "start":
        train(first(), data / "x.tok", None, other, "cpu", quiet=True)
    else:
        write_store(other, seed=9)
    titles.clear()
    with pytest.raises(OutputError, match=f"was trained with {key}=None, not {other}"):
        table(data, out, f"a: first {key}={other}").run()
    assert not titles
    assert table(data, out, "a: first").run()["rows"][0]["seeds"] == [0, 1]


@pytest.mark.parametrize("exchanged", ["x.tok", "v.tok"])
def test_other_images_in_the_same_place_are_refused(tmp_path: Path, titles: list[str], exchanged: str) -> None:
    """A seed that was added was trained on them, in one mean with the others."""
    write_store(tmp_path / "x.tok")
    write_store(tmp_path / "v.tok", count=18, seed=1)
    table(tmp_path, tmp_path / "t", "a: first").run()
    count = len(Store(tmp_path / exchanged))
    shutil.rmtree(tmp_path / exchanged)
    write_store(tmp_path / exchanged, count=count, seed=7)
    shutil.rmtree(tmp_path / "t/runs")
    titles.clear()
    with pytest.raises(OutputError, match=r"row 'a' in .* other images than lie there now"):
        table(tmp_path, tmp_path / "t", "a: first", protocol=replace(SMALL, seeds=3)).run()
    assert not titles
    assert json.loads((tmp_path / "t/settings.json").read_text())["protocol"]["seeds"] == 2


def test_a_rate_that_diverges_does_not_stop_the_table(
    data: Path, tmp_path: Path, titles: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    wild = replace(SMALL, passes=10, rates=(1e-3, 1e30))
    lines = ("a: first fit.optim.clip=0", "b: second fit.optim.clip=0")
    found = replace(table(data, tmp_path / "t", *lines, protocol=wild), quiet=False).run()
    assert [row["rate"] for row in found["rows"]] == [1e-3, 1e-3]
    assert [row["seeds"] for row in found["rows"]] == [[0, 1], [0, 1]]
    assert found["rows"][0]["held_by_rate"]["1e+30"] is None
    assert "row 'a' diverged at rate 1e+30" in capsys.readouterr().err
    titles.clear()
    assert table(data, tmp_path / "t", *lines, protocol=wild).run() == found
    assert not titles


def test_a_row_that_diverges_at_every_rate_is_named(data: Path, tmp_path: Path) -> None:
    wild = replace(SMALL, passes=10, rates=(1e29, 1e30))
    lines = ("a: first fit.optim.clip=0", "b: second fit.optim.clip=0")
    with pytest.raises(TrainingError, match="row 'a' diverged at every rate"):
        table(data, tmp_path / "t", *lines, protocol=wild).run()
    assert len(json.loads((tmp_path / "t/results.json").read_text())["trials"]) == 4


def test_seeds_that_another_process_added_stay(data: Path, tmp_path: Path) -> None:
    """One that was started with fewer wrote the table as if they were not asked for."""
    fewer = table(data, tmp_path / "t", "a: first", "b: second")
    more = replace(fewer, protocol=replace(SMALL, seeds=3))
    fewer.run()
    found = more.run()
    rows = fewer.rows()
    written = fewer._record(rows, [], {row.name: fewer._inputs_of(row) for row in rows})
    assert written == found
    assert found["protocol"]["seeds"] == 3
    assert found["degrees_of_freedom"] == 2


def test_rows_that_are_not_named_need_neither_their_data_nor_their_recipe(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were looked for after the new row was trained."""
    shutil.copytree(data / "x.tok", tmp_path / "own.tok")
    before = table(data, tmp_path / "t", f"mine: first data={tmp_path}/own.tok", "b: second").run()
    shutil.rmtree(tmp_path / "own.tok")
    shutil.rmtree(tmp_path / "t/runs")
    monkeypatch.delitem(recipes._entries, "second")
    after = table(data, tmp_path / "t", "new: first").run()
    for row, now in zip(before["rows"], after["rows"][:2], strict=True):
        assert now == {**row, "resolved": now["resolved"]}
    assert [row["row"] for row in after["rows"]] == ["mine", "b", "new"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda r: r.pop("rows"),
        lambda r: r.pop("trials"),
        lambda r: r["rows"].pop(0),
        lambda r: r["trials"][2].update(figures={}),
        lambda r: r["trials"][0]["figures"].update(top1=None),
        lambda r: [one.update(curve=[{}]) for one in r["trials"]],
        lambda r: r["trials"][0].update(rate="x"),
        lambda r: r["trials"].append({"row": "a"}),
        lambda r: r.update(rows=None),
    ],
)
def test_malformed_results_are_refused_before_anything_runs(
    data: Path, tmp_path: Path, titles: list[str], spoil: Callable[[dict[str, Any]], object]
) -> None:
    table(data, tmp_path / "t", "a: first").run()
    results = json.loads((tmp_path / "t/results.json").read_text())
    spoil(results)
    (tmp_path / "t/results.json").write_text(json.dumps(results))
    titles.clear()
    for name in ("a", "b"):
        with pytest.raises(DamageError, match=r"results\.json is malformed"):
            table(data, tmp_path / "t", f"{name}: first").run()
    assert not titles


@pytest.mark.parametrize(
    ("setting", "instead"),
    [
        ("fit.optim.lr=0.1", "--rates"),
        ("fit.seed=7", "--seeds"),
        ("fit.epochs=50", "--passes"),
        ("samples=12", "--samples"),
        ("draw.seed=3", "--samples"),
        ("fit.early_stop=1", "all its passes"),
    ],
)
def test_settings_that_the_protocol_sets_are_refused(data: Path, tmp_path: Path, setting: str, instead: str) -> None:
    """They were overruled without a word."""
    said = f"'{setting.partition('=')[0]}' of row 'a' is set by the protocol.*{instead}"
    with pytest.raises(ConfigError, match=said):
        table(data, tmp_path / "t", f"a: first {setting}").run()
    with pytest.raises(ConfigError, match=said):
        replace(table(data, tmp_path / "t", "a: first"), settings=(setting,)).run()


def test_validation_never_ends_a_run() -> None:
    run = SMALL.run(replace(first(), fit=replace(first().fit, early_stop=1)), 0, 1e-3)
    assert isinstance(run, Run)
    assert run.fit.early_stop == 0


def test_classes_of_the_first_level_are_counted_as_such(tmp_path: Path) -> None:
    """Their sub-folders were."""
    for part in ("train", "val"):
        for name in ("a/x", "a/y", "b/x", "b/y"):
            for i in range(6):
                put(tmp_path / part / name / f"{i}.png", Image.fromarray(gradient(8, 8) + i))
    run = replace(first(), classes="top", size=(8, 8), model=VitConfig(width=16, depth=1, heads=2, pool="mean",
                  stem=PatchStemConfig(4)), augment=(Normalise(),), evaluation=(Normalise(),))  # fmt: skip
    small = replace(SMALL, samples=2, held=4)
    recipes._entries["top"] = Recipe("top", "", "", run)
    try:
        found = ConvergedTable(
            ("a: top",), tmp_path / "train", tmp_path / "val", tmp_path / "t", device="cpu", quiet=True, protocol=small
        ).run()
    finally:
        del recipes._entries["top"]
    assert found["rows"][0]["seeds"] == [0, 1]


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
        ({"rates": (1e-3, 1e-3, 2e-3)}, "nothing to choose"),
        ({"rates": (1e-3, 1e-3 + 1e-12)}, "nothing to choose"),  # one directory for both
        ({"rates": (1e-3, float("inf"))}, "nothing to choose"),
        ({"rates": (1e-3, float("nan"))}, "nothing to choose"),
        ({"seeds": 0}, "at least 1"),
    ],
)
def test_impossible_protocols_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        replace(SMALL, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"samples": 2}, "--samples 2 of 3 classes are 0 of each"),
        ({"samples": 10_000}, "--samples 10000 and --held 6 are more than the"),
        (
            {"samples": 40, "held": 1, "uneven": True},
            "--samples 40 of 3 classes are 13 of each, and the smallest has 4",
        ),
        ({"held": 10_000}, "--samples 12 and --held 10000 are more than the"),
    ],
)
def test_data_that_cannot_give_the_subset_are_refused_before_anything_runs(
    data: Path, tmp_path: Path, titles: list[str], changes: dict[str, Any], said: str
) -> None:
    if changes.pop("uneven", False):
        write_store(tmp_path / "x.tok", labels=np.array([0] * 22 + [1] * 22 + [2] * 4))
        write_store(tmp_path / "v.tok", count=18, seed=1)
        data = tmp_path
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
