"""Lists of recipes as a table: how rows are read, what is trained once only, what is refused, and the command."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from threading import Event, Thread
from time import sleep
from typing import Any

import pytest

from small_data import write_objects, write_store
from tilework.augment import CentreCrop, CodeCut, Embed, TokenAdapt
from tilework.cli.main import main
from tilework.core.errors import ConfigError, DamageError, InputError, OutputError, TileworkError
from tilework.core.files import locked
from tilework.evaluation import Accuracy, validation
from tilework.experiments import runner
from tilework.experiments.runner import accuracy_cell, claim, difference_cell, resolution_line, with_seed
from tilework.experiments.table import Table, markdown
from tilework.layers.stems import PatchStemConfig, TokenPatchStemConfig
from tilework.models import VitConfig
from tilework.objectives import ClassifyConfig, ClassifyScoredConfig, MaskedConfig, Task
from tilework.recipes import Recipe, recipes
from tilework.runs import Artefacts, Chain, Link, Run, train
from tilework.train import FitConfig


def tiny_first() -> Run:
    model = VitConfig(width=16, depth=1, heads=2, pool="mean", stem=TokenPatchStemConfig())
    return Run(model, ClassifyConfig(), (Embed(),), (Embed(),), fit=FitConfig(epochs=0, steps=2, batch=12))


def tiny_second() -> Run:
    return replace(tiny_first(), objective=ClassifyConfig(smoothing=0.3))


def tiny_masked() -> Run:
    objective = MaskedConfig(width=16, depth=1, heads=2)
    return replace(tiny_first(), objective=objective, augment=(CodeCut((8, 8)),), evaluation=(CentreCrop((8, 8)),))


def tiny_adapted() -> Run:
    return replace(tiny_first(), augment=(TokenAdapt(size=(8, 8)),))


def tiny_chain() -> Chain:
    return Chain((Link("pretrain", tiny_masked()), Link("tune", tiny_first())))


@pytest.fixture(autouse=True)
def small_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    for recipe in (tiny_first, tiny_second, tiny_masked, tiny_adapted, tiny_chain):
        monkeypatch.setitem(recipes._entries, recipe.__name__, Recipe(recipe.__name__, "", "", recipe()))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("table")
    write_store(root / "x.tok")
    write_store(root / "v.tok", count=18, seed=1)
    return root


def table(data: Path, out: Path, *lines: str, **changes: Any) -> Table:
    return Table(lines, data / "x.tok", data / "v.tok", out, **{"device": "cpu", "quiet": True, **changes})


Trained = Callable[[], list[str]]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Trained:
    """The titles of the runs that were trained since it was asked last."""
    titles: list[str] = []
    for name in ("train", "train_chain"):
        real = getattr(runner, name)

        def noted(*arguments: Any, _real: Any = real) -> Any:
            titles.append(arguments[5])
            return _real(*arguments)

        monkeypatch.setattr(runner, name, noted)

    def since() -> list[str]:
        found = titles.copy()
        titles.clear()
        return found

    return since


# rows


@pytest.mark.parametrize(
    ("line", "name", "seeds", "changes", "start"),
    [
        ("tiny_first", "tiny_first", 1, {}, None),
        ("tiny_first@3", "tiny_first", 3, {}, None),
        ("tiny_first @3", "tiny_first", 3, {}, None),
        ("a row: tiny_first", "a row", 1, {}, None),
        ("a row: tiny_first model.width=32 @2", "a row", 2, {"width": 32}, None),
        ("x: tiny_first model.width=32 model.depth=2@4", "x", 4, {"width": 32, "depth": 2}, None),
        ("x: tiny_first start=runs/old", "x", 1, {}, "runs/old"),
        ("x: tiny_first start=old model.depth=3 @2", "x", 2, {"depth": 3}, "old"),
        ("  tiny_first   model.depth=3  ", "tiny_first", 1, {"depth": 3}, None),
        ("lr: 0.1: tiny_first", "lr", 1, {}, None),
        ("tiny_first 'model.stem={name: patch, patch: 8}'", "tiny_first", 1, {"stem": PatchStemConfig(8)}, None),
        ("DeiT's: tiny_first", "DeiT's", 1, {}, None),
    ],
)
def test_rows_are_read(
    line: str, name: str, seeds: int, changes: dict[str, int], start: str | None, data: Path, tmp_path: Path
) -> None:
    if line.startswith("lr: "):
        with pytest.raises(ConfigError, match=r"unknown recipe '0\.1:'"):
            table(data, tmp_path / "out", line).rows()
        return
    row = table(data, tmp_path / "out", line)._row(line)
    assert (row.name, row.seeds, row.links) == (name, seeds, 1)
    assert row.start == (None if start is None else Path(start))
    assert row.run == replace(tiny_first(), model=replace(tiny_first().model, **changes))  # type: ignore[arg-type]


def test_settings_of_all_come_before_those_of_a_row(data: Path, tmp_path: Path) -> None:
    common = ("fit.steps=3", "model.depth=2")
    first, second = table(data, tmp_path / "o", "tiny_first", "b: tiny_second model.depth=4", settings=common).rows()
    assert isinstance(first.run, Run)
    assert isinstance(second.run, Run)
    assert (first.run.fit.steps, first.run.model.depth) == (3, 2)  # type: ignore[attr-defined]
    assert (second.run.fit.steps, second.run.model.depth) == (3, 4)  # type: ignore[attr-defined]
    assert second.run.objective == ClassifyConfig(smoothing=0.3)


def test_settings_of_all_reach_the_last_link_of_a_chain(data: Path, tmp_path: Path) -> None:
    lines = ("tiny_chain", "b: tiny_chain links.0.run.fit.steps=5 links.1.run.fit.steps=4")
    first, second = table(data, tmp_path / "out", *lines, settings=("fit.steps=3",)).rows()
    steps = [[link.run.fit.steps for link in row.run.links] for row in (first, second)]  # type: ignore[union-attr]
    assert steps == [[2, 3], [5, 4]]
    assert (first.name, first.links) == ("tiny_chain", 2)


def test_tools_go_where_they_are_used(data: Path, tmp_path: Path) -> None:
    given = Artefacts(tokenizer=tmp_path / "t", adapter=tmp_path / "a")
    job = table(data, tmp_path / "out", "tiny_first", "tiny_adapted", artefacts=given)
    plain, adapted = (job._row(line).run for line in job.lines)
    assert plain == tiny_first()
    assert adapted.augment[0].adapter == str(tmp_path / "a")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("line", "start", "seeds"),
    [("x: tiny_first start=/data/run@v2/x @2", "/data/run@v2/x", 2), ("tiny_first 'start=a b/c'", "a b/c", 1)],
)
def test_paths_may_hold_signs_and_spaces(line: str, start: str, seeds: int, data: Path, tmp_path: Path) -> None:
    row = table(data, tmp_path / "out", line)._row(line)
    assert (row.start, row.seeds) == (Path(start), seeds)


def test_every_row_is_checked_before_the_first_one_runs(data: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no weights at"):
        table(data, tmp_path / "out", "tiny_first", "x: tiny_first start=nowhere").run()
    with pytest.raises(TileworkError, match="TokenAdapt"):
        table(data, tmp_path / "out", "tiny_first", "tiny_adapted").run()
    with pytest.raises(InputError, match="label maps"):
        table(data, tmp_path / "out", "tiny_first", "token_labels_cpu codes=null").run()
    assert not (tmp_path / "out").exists()


def test_tables_are_not_for_torchrun(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="torchrun"):
        table(data, tmp_path / "out", "tiny_first").run()


def test_rows_without_classes_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="row 'tiny_masked' trains no classifier"):
        table(data, tmp_path / "out", "tiny_first", "tiny_masked").rows()


def test_rows_are_judged_by_the_figure_of_their_task(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored = replace(tiny_first(), objective=ClassifyScoredConfig(samples=48))
    monkeypatch.setitem(recipes._entries, "tiny_scored", Recipe("tiny_scored", "test", "tiny", scored))
    monkeypatch.setattr(ClassifyScoredConfig, "task", Task(metric="loss"))
    monkeypatch.setitem(validation.BY_METRIC, "loss", lambda source: Accuracy())
    with pytest.raises(ConfigError, match="row 'tiny_scored' is evaluated by loss, row 'tiny_first' by top1"):
        table(data, tmp_path / "out", "tiny_first", "tiny_scored").rows()
    results = table(data, tmp_path / "out", "tiny_scored@2").run()
    found = [
        json.loads((tmp_path / f"out/runs/tiny_scored/seed-{seed}/run/results.json").read_text())["loss"]
        for seed in (0, 1)
    ]
    assert (results["metric"], results["higher_is_better"]) == ("loss", True)
    assert results["rows"][0]["loss"] == found
    assert results["rows"][0]["mean"] == pytest.approx(mean(found))
    assert "| seeds | loss | vs" in (tmp_path / "out/table.md").read_text()


def test_detectors_are_rows(tmp_path: Path) -> None:
    objects = write_objects(tmp_path / "objects")
    settings = ("fit.steps=1", "fit.batch=2", "size=[64,64]", "model.channels=8")
    line = " ".join(("plain: detect_cpu", *settings))
    results = Table((line,), objects, objects, tmp_path / "out", device="cpu", quiet=True).run()
    assert results["metric"] == "box_ap"
    assert 0 <= results["rows"][0]["mean"] <= 1


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (("tiny_frist",), "unknown recipe 'tiny_frist': did you mean 'tiny_first'"),
        (("tiny_chian",), "did you mean 'tiny_chain'"),
        (("tiny_first@0",), "cannot parse row"),
        (("tiny_first@x",), "cannot parse row"),
        (("tiny_first@-1",), "cannot parse row"),
        (("tiny_first@1.5",), "cannot parse row"),
        (("tiny_first@",), "cannot parse row"),
        (("@2",), "cannot parse row"),
        (("",), "cannot parse row"),
        (("name: ",), "cannot parse row"),
        (("tiny_first", "tiny_first@2"), "two rows have one name"),
        (("a: tiny_first", "a: tiny_second"), "two rows have one name"),
        ((), "there are no rows"),
        (("tiny_first model.widht=3",), "width"),
        (("tiny_first nonsense",), "nonsense"),
        (("a|b: tiny_first",), "cannot parse row"),
        (("tiny_first start=",), "'start' of row 'tiny_first start=' names no path"),
        (("tiny_first data",), "'data' of row 'tiny_first data' names no path"),
        (("tiny_chain fit.steps=3",), "fit"),
    ],
)
def test_bad_rows_are_refused_before_anything_is_written(
    lines: tuple[str, ...], words: str, data: Path, tmp_path: Path
) -> None:
    for method in ("run", "plan"):
        with pytest.raises(ConfigError, match=words) as error:
            getattr(table(data, tmp_path / "out", *lines), method)()
        assert error.value.hint
    assert not (tmp_path / "out").exists()


def test_bad_data_are_refused_before_anything_is_written(data: Path, tmp_path: Path) -> None:
    for missing in ("data", "val"):
        with pytest.raises(InputError, match=r"no such data: .*nowhere"):
            replace(table(data, tmp_path / "out", "tiny_first"), **{missing: tmp_path / "nowhere"}).run()
    more = write_store(tmp_path / "more.tok", classes=4)
    with pytest.raises(InputError, match="other classes"):
        replace(table(data, tmp_path / "out", "tiny_chain"), val=more).run()
    with pytest.raises(InputError, match=r"no weights at .*gone"):
        table(data, tmp_path / "out", f"tiny_chain start={tmp_path / 'gone'}").run()
    assert not (tmp_path / "out").exists()


# running


def test_the_table_is_made_seed_by_seed_and_once(data: Path, tmp_path: Path, trained: Trained) -> None:
    out, lines = tmp_path / "out", ("first: tiny_first@2", "second: tiny_second model.depth=2@3", "tiny_second")
    results = table(data, out, *lines).run()
    seen = [f"{name} seed {seed}" for name, seed in (("first", 0), ("second", 0), ("tiny_second", 0))]
    seen += [f"{name} seed {seed}" for name, seed in (("first", 1), ("second", 1), ("second", 2))]
    assert trained() == seen
    rows = {row["row"]: row for row in results["rows"]}
    assert [(row["row"], row["seeds"], row["line"]) for row in results["rows"]] == [
        ("first", [0, 1], lines[0]),
        ("second", [0, 1, 2], lines[1]),
        ("tiny_second", [0], lines[2]),
    ]
    for name, seed in (("first", 1), ("second", 2), ("tiny_second", 0)):
        place = out / f"runs/{name}/seed-{seed}/run"
        found = json.loads((place / "results.json").read_text())["top1"]
        assert rows[name]["top1"][seed] == found
        assert f"seed: {seed}" in (place / "run.yaml").read_text()
    first, second = rows["first"], rows["second"]
    assert second["mean"] == pytest.approx(mean(second["top1"]))
    assert second["deviation"] == pytest.approx(stdev(second["top1"]))
    assert second["difference"] == pytest.approx(mean(second["top1"]) - mean(first["top1"]))
    assert results["degrees_of_freedom"] == 3
    assert all(len(row["seconds"]) == len(row["seeds"]) for row in results["rows"])
    assert json.loads((out / "results.json").read_text()) == json.loads(json.dumps(results))
    written = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*") if path.is_file()}
    (out / ".settings.json.0123abcd.tmp").write_bytes(b"half")  # of a process that was killed
    assert table(data, out, *lines).run() == results
    assert not (out / ".settings.json.0123abcd.tmp").exists()
    assert trained() == []
    assert {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*") if path.is_file()} == written


def test_a_stopped_table_goes_on(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: Trained) -> None:
    out, lines, real = tmp_path / "out", ("tiny_first@2", "tiny_second@2"), runner.train

    def stopped(*arguments: Any) -> Any:
        if arguments[5] == "tiny_first seed 1":
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "train", stopped)
        with pytest.raises(KeyboardInterrupt):
            table(data, out, *lines).run()
    early = json.loads((out / "results.json").read_text())["rows"]
    assert [(row["row"], row["seeds"]) for row in early] == [("tiny_first", [0]), ("tiny_second", [0])]
    assert "| tiny_second | 1 |" in (out / "table.md").read_text()
    trained()
    late = table(data, out, *lines).run()["rows"]
    assert trained() == ["tiny_first seed 1", "tiny_second seed 1"]
    assert [row["top1"][0] for row in late] == [row["top1"][0] for row in early]


def test_rows_and_seeds_can_be_added_later(data: Path, tmp_path: Path, trained: Trained) -> None:
    out = tmp_path / "out"
    table(data, out, "tiny_first").run()
    trained()
    found = table(data, out, "tiny_first@2", "tiny_second").run()
    assert trained() == ["tiny_second seed 0", "tiny_first seed 1"]
    assert [row["seeds"] for row in found["rows"]] == [[0, 1], [0]]


def test_rows_that_a_command_does_not_name_stay(data: Path, tmp_path: Path, trained: Trained) -> None:
    """They were gone from the table, though not their runs."""
    out = tmp_path / "out"
    before = table(data, out, "a: tiny_first@2", "b: tiny_second").run()
    trained()
    after = table(data, out, "c: tiny_second fit.steps=1").run()
    assert trained() == ["c seed 0"]
    assert [(row["row"], row["line"], row["top1"]) for row in after["rows"][:2]] == [
        (row["row"], row["line"], row["top1"]) for row in before["rows"]
    ]
    assert after["rows"][2]["difference"] == pytest.approx(after["rows"][2]["mean"] - before["rows"][0]["mean"])
    assert table(data, out, "a: tiny_first@2").run()["rows"] == after["rows"]
    assert "| b | 1 |" in (out / "table.md").read_text()
    (out / "results.json").write_text(json.dumps({**after, "rows": [{"row": "b"}]}))
    with pytest.raises(DamageError, match=r"results\.json is malformed"):
        table(data, out, "a: tiny_first@2").run()
    (out / "results.json").write_text(json.dumps({**after, "metric": "miou"}))
    with pytest.raises(OutputError, match="are evaluated by miou, row 'a' by top1"):
        table(data, out, "a: tiny_first@2").run()
    assert trained() == []


def test_runs_on_images_that_were_exchanged_make_no_table(tmp_path: Path) -> None:
    """The seeds of two data sets were one mean."""
    write_store(tmp_path / "x.tok")
    write_store(tmp_path / "v.tok", count=18, seed=1)
    before = table(tmp_path, tmp_path / "out", "a: tiny_first").run()
    shutil.rmtree(tmp_path / "x.tok")
    write_store(tmp_path / "x.tok", seed=5)
    with pytest.raises(OutputError, match=r"a/seed-0 and .*a/seed-1 were trained on other data of the same name"):
        table(tmp_path, tmp_path / "out", "a: tiny_first@2").run()
    (row,) = json.loads((tmp_path / "out/results.json").read_text())["rows"]
    assert (row["seeds"], row["top1"]) == ([0], before["rows"][0]["top1"])


def test_a_table_is_written_while_no_other_process_writes_it(data: Path, tmp_path: Path) -> None:
    """One that began then removed what was half written, and the other ended with a FileNotFoundError."""
    one, there, written = table(data, tmp_path / "out", "a: tiny_first"), Event(), []
    before = one.run()

    def hold() -> None:
        with locked(tmp_path / "out", wait=True):
            there.set()
            sleep(0.2)
            written.append((tmp_path / "out/results.json").stat().st_mtime_ns)

    earlier = (tmp_path / "out/results.json").stat().st_mtime_ns
    other = Thread(target=hold)
    other.start()
    there.wait()
    one._report(one.rows(), [runner.run_trial(runner.Trial("a", 0, with_seed(one.rows()[0].run, 0),
                (one.data,), (one.val,)), one.out, "cpu", True)])  # fmt: skip
    other.join()
    assert written == [earlier]
    assert json.loads((tmp_path / "out/results.json").read_text())["rows"][0]["top1"] == before["rows"][0]["top1"]


@pytest.mark.parametrize("deviation", [0.0, -3.0, 1.5, float("nan"), float("inf")])
def test_impossible_deviations_are_refused(data: Path, tmp_path: Path, deviation: float) -> None:
    with pytest.raises(ConfigError, match="a deviation of"):
        table(data, tmp_path / "out", "tiny_first", deviation=deviation).plan()


def test_another_table_in_the_same_place_is_refused(data: Path, tmp_path: Path, trained: Trained) -> None:
    out = tmp_path / "out"
    table(data, out, "a: tiny_first").run()
    trained()
    for changes in (
        {"settings": ("fit.steps=3",)},
        {"artefacts": Artefacts(adapter=tmp_path / "adapter")},
        {"artefacts": Artefacts(tokenizer=tmp_path / "tokenizer")},
        {"artefacts": Artefacts(maps=tmp_path / "maps")},
    ):
        with pytest.raises(OutputError, match="out holds a table with other settings"):
            table(data, out, "a: tiny_first", **changes).run()
    with pytest.raises(OutputError, match="a table with other settings"):
        replace(table(data, out, "a: tiny_first"), val=data / "x.tok").run()
    with pytest.raises(OutputError, match="a run with other settings"):
        table(data, out, "a: tiny_second").run()
    with pytest.raises(OutputError, match="holds other files"):
        table(data, data, "a: tiny_first").run()
    assert trained() == []
    assert table(data, out, "a: tiny_first", deviation=0.02).run()["assumed_deviation"] == 0.02


def test_processes_share_a_table(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: Trained) -> None:
    """A run that another process is at is left to it; its number is waited for."""
    out, lines, waits = tmp_path / "out", ("a: tiny_first", "b: tiny_second", "c: tiny_second fit.steps=1"), []
    alone = table(data, tmp_path / "alone", *lines).run()
    trained()
    (out / "runs/a/seed-0").mkdir(parents=True)
    (out / "settings.json").write_bytes((tmp_path / "alone/settings.json").read_bytes())
    with ExitStack() as other:
        other.enter_context(locked(out / "runs/a/seed-0"))

        def wait(seconds: float) -> None:
            waits.append(seconds)
            assert trained() == ["b seed 0", "c seed 0"]
            other.close()

        monkeypatch.setattr(runner, "sleep", wait)
        found = table(data, out, *lines).run()
    assert len(waits) == 1
    assert 0 < waits[0] < 60
    assert trained() == ["a seed 0"]
    keep = ("row", "top1", "difference")
    mine, theirs = ([{key: row[key] for key in keep} for row in one["rows"]] for one in (found, alone))
    assert mine == theirs, "in the order of the lines, compared with the first"


def test_rows_start_from_runs(data: Path, tmp_path: Path) -> None:
    train(tiny_masked(), data / "x.tok", None, tmp_path / "pre", "cpu", quiet=True)
    out, lines = tmp_path / "out", ("fresh: tiny_first", f"begun: tiny_first start={tmp_path / 'pre'}")
    found = {row["row"]: row["top1"] for row in table(data, out, *lines).run()["rows"]}
    train(tiny_first(), data / "x.tok", data / "v.tok", tmp_path / "one", "cpu", quiet=True, start=tmp_path / "pre")
    assert found["begun"] == [json.loads((tmp_path / "one/results.json").read_text())["top1"]]
    starts = {
        name: json.loads((out / f"runs/{name}/seed-0/run/data.json").read_text())["start"]
        for name in ("fresh", "begun")
    }
    assert starts["fresh"] is None
    assert (out / "runs/begun/seed-0/run" / starts["begun"]).resolve() == (tmp_path / "pre").resolve()
    with pytest.raises(OutputError, match="a run with other settings"):
        table(data, out, "fresh: tiny_first", "begun: tiny_first").run()


def test_chains_are_rows_too(data: Path, tmp_path: Path, trained: Trained) -> None:
    out, lines = tmp_path / "out", ("tiny_first", "tiny_chain@2")
    found = table(data, out, *lines).run()
    assert [row["row"] for row in found["rows"]] == ["tiny_first", "tiny_chain"]
    for seed in (0, 1):
        place = out / f"runs/tiny_chain/seed-{seed}/run"
        assert (place / "1-pretrain/results.json").is_file()
        assert found["rows"][1]["top1"][seed] == json.loads((place / "2-tune/results.json").read_text())["top1"]
        assert "loss" not in json.loads((place / "1-pretrain/results.json").read_text()), "judged at the end only"
    trained()
    assert table(data, out, *lines).run() == found
    assert trained() == []


def test_plans_leave_nothing_behind(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = table(data, tmp_path / "out", "tiny_first@3", "c: tiny_chain@2").plan()
    assert found["rows"] == {"tiny_first": 3, "c": 2}
    assert found["runs"] == 5
    minutes = found["minutes_per_run"]
    assert minutes["c"] > 0
    assert found["minutes"] == pytest.approx(3 * minutes["tiny_first"] + 2 * minutes["c"])
    # 1.96 sqrt(2) deviations, by the normal distribution; half of the variance for two seeds
    assert found["noise"] == (
        "with one seed per row, differences below 2.8 points are within noise (95 %), with two seeds below 2.0, "
        "assuming a standard deviation of 1 points between seeds"
    )
    assert list(tmp_path.iterdir()) == []


# the table for people


def row(name: str, seeds: int, **numbers: Any) -> dict[str, Any]:
    return {"row": name, "seeds": list(range(seeds)), "seconds": [90.0] * seeds, **numbers}


def test_markdown_by_hand() -> None:
    rows = [
        row("a", 2, mean=0.5, deviation=0.0123, difference=0.0, resolved=False),
        row("b", 2, mean=0.61, deviation=0.02, difference=0.11, resolved=True),
        row("c", 1, mean=0.4949, deviation=None, difference=-0.0051, resolved=False),
    ]
    results = {"rows": rows, "deviation": 0.0166, "degrees_of_freedom": 2, "metric": "top1", "higher_is_better": True}
    lines = markdown(results).splitlines()
    assert "| error (lower is better) |" in markdown({**results, "metric": "error", "higher_is_better": False})
    assert lines[2:5] == [
        "| a | 2 | 50.0 ± 1.2 |  | 1.5 |",
        "| b | 2 | 61.0 ± 2.0 | +11.0 | 1.5 |",
        "| c | 1 | 49.5 | -0.5 (*within noise*) | 1.5 |",
    ]
    assert lines[5] == ""
    # Student's t of 2 degrees of freedom, 4.303, times sqrt(2) deviations
    assert lines[6] == (
        "Standard deviation between seeds: 1.66 points (2 degrees of freedom). With one seed per row, differences "
        f"below {4.303 * 2**0.5 * 1.66:.1f} points are within noise (95 %)."
    )


def test_cells_without_several_seeds() -> None:
    one = row("a", 1, mean=1 / 3, deviation=None, difference=1 / 3, resolved=None)
    assert accuracy_cell(one) == "33.3"
    assert difference_cell(one) == "+33.3 (one seed)"
    assert resolution_line(None, 0) == ""


def test_a_refused_claim_changes_nothing(tmp_path: Path) -> None:
    """Settings of an older version took the fingerprints of a command that was refused."""
    claim(tmp_path / "a", {"images": "x"}, "comparison")
    with pytest.raises(OutputError, match="other settings"):
        claim(tmp_path / "a", {"images": "y", "samples": {"train": "2"}}, "comparison")
    assert json.loads((tmp_path / "a/settings.json").read_text()) == {"images": "x"}
    claim(tmp_path / "a", {"images": "x", "samples": {"train": "1"}}, "comparison")
    with pytest.raises(OutputError, match="other images"):
        claim(tmp_path / "a", {"images": "x", "samples": {"train": "2"}}, "comparison")


def test_places_are_claimed_once(tmp_path: Path) -> None:
    claim(tmp_path, {"a": 1}, "table")
    claim(tmp_path, {"a": 1}, "table")
    assert json.loads((tmp_path / "settings.json").read_text()) == {"a": 1}
    with pytest.raises(OutputError, match="a table with other settings"):
        claim(tmp_path, {"a": 2}, "table")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/letter.txt").write_text("dear")
    with pytest.raises(OutputError, match="other files"):
        claim(tmp_path / "other", {"a": 1}, "table")


# the command


def command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["table", *map(str, arguments)])
    return int(ended.value.code or 0)


def test_the_command(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = ["--data", data / "x.tok", "--val", data / "v.tok", "--out", tmp_path / "out", "--device", "cpu"]
    assert command("a: tiny_first fit.steps=1@2", "tiny_second", *places, "--dry-run", "--json") == 0
    planned = json.loads(capsys.readouterr().out)
    assert (planned["runs"], planned["rows"]) == (3, {"a": 2, "tiny_second": 1})
    assert not (tmp_path / "out").exists()
    assert command("a: tiny_first fit.steps=1@2", "tiny_second", *places, "--json") == 0
    results = json.loads(capsys.readouterr().out)
    assert results == json.loads((tmp_path / "out/results.json").read_text())
    assert [row["row"] for row in results["rows"]] == ["a", "tiny_second"]
    assert command("a: tiny_first fit.steps=1@2", "tiny_second", *places) == 0
    shown = capsys.readouterr().out
    assert (tmp_path / "out/table.md").read_text() in shown
    assert "results.json" in shown


def test_settings_and_errors_of_the_command(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = ["--data", data / "x.tok", "--val", data / "v.tok", "--out", tmp_path / "out", "--device", "cpu"]
    assert command("tiny_first", *places, "--settings", "fit.steps=1", "model.depth=2", "--json") == 0
    capsys.readouterr()
    settings = (tmp_path / "out/runs/tiny_first/seed-0/run/run.yaml").read_text()
    assert "steps: 1\n" in settings
    assert "depth: 2\n" in settings
    for lines, kind, words in (
        (["tiny_frist"], ConfigError, "did you mean 'tiny_first'"),
        (["tiny_first"], OutputError, "holds a table with other settings"),
    ):
        assert command(*lines, *places) == kind.exit_code
        assert words in capsys.readouterr().err
    assert issubclass(ConfigError, TileworkError)


def test_seeds_and_what_each_starts_from(data: Path, tmp_path: Path) -> None:
    train(tiny_first(), data / "x.tok", None, tmp_path / "before/seed-0", "cpu", quiet=True)
    given: dict[str, Any] = {"seeds": 2, "quiet": True, "device": "cpu"}
    job = Table(["a: tiny_first", f"b: tiny_first start={tmp_path}/before/seed-{{seed}}", "c: tiny_first @1"],
                data / "x.tok", data / "v.tok", tmp_path / "out", **given)  # fmt: skip
    with pytest.raises(InputError, match="seed-1"):
        job.run()
    train(tiny_first(), data / "x.tok", None, tmp_path / "before/seed-1", "cpu", quiet=True)
    assert [len(row["seeds"]) for row in job.run()["rows"]] == [2, 2, 1]
    maps = with_seed(replace(tiny_first(), maps="own-{seed}.maps"), 3)
    assert isinstance(maps, Run)
    assert (maps.maps, maps.fit.seed) == ("own-3.maps", 3)


def test_no_option_of_the_protocol_is_ignored(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["table", "tiny_first", "--data", f"{data}/x.tok", "--val", f"{data}/v.tok", "--out", f"{tmp_path}/out"]
    for more, said in ((["--passes", "3"], "--passes belongs to --protocol"), (["--seeds", "0"], "0 seeds")):
        with pytest.raises(SystemExit) as ended:
            main([*words, *more])
        assert ended.value.code == ConfigError.exit_code
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
