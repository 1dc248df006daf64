"""Tables of recipes on the same data, each with several seeds: ablations and sweeps.

Rows are written "NAME: RECIPE [KEY=VALUE ...] [start=RUN] [data=PATH val=PATH] [@SEEDS]", or RECIPE alone; a row with
data of its own is compared with the others all the same: pixels beside tokens of the same images.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path

from tilework.core.config import Plain, resolve
from tilework.core.errors import ConfigError, DamageError, OutputError
from tilework.core.files import locked, make_directory, remove_unfinished, write, write_json
from tilework.core.location import Location, PathOrHub, location
from tilework.core.sealed import read_json
from tilework.experiments.runner import (
    Outcome,
    Trial,
    accuracy_cell,
    claim,
    difference_cell,
    noise_line,
    resolution_line,
    run_trials,
    summarise,
    task_of,
    with_seed,
)
from tilework.experiments.statistics import pooled_deviation
from tilework.objectives import Task
from tilework.recipes import find
from tilework.runs import Artefacts, Chain, Link, Run, check_links, equip, plan
from tilework.runs.build import check_there
from tilework.train.log import counted, notice

RESULTS, TABLE = "results.json", "table.md"
OWN = ("start", "data", "val")  # words of a row that are no settings


@dataclass(frozen=True)
class Row:
    """A parsed row of the table."""

    name: str
    run: Run | Chain
    start: Path | None
    seeds: int
    data: Location | None = None  # of its own
    val: Location | None = None
    line: str = ""  # as it was written
    has_seeds: bool = False  # whether the line says how many
    settings: tuple[str, ...] = ()  # KEY=VALUE of its own

    @property
    def links(self) -> int:
        """Number of runs: of a chain, one per link."""
        return len(self.run.links) if isinstance(self.run, Chain) else 1

    def start_of(self, seed: int) -> Path | None:
        """What a seed starts from."""
        return None if self.start is None else Path(str(self.start).replace("{seed}", str(seed)))


@dataclass(frozen=True)
class Table:
    """A table in its directory; finished runs are not repeated."""

    lines: Sequence[str]
    data: Location
    val: Location
    out: Path
    settings: Sequence[str] = ()  # overrides for every run; of chains, for the last run
    artefacts: Artefacts = field(default_factory=Artefacts)
    deviation: float = 0.01  # assumed standard deviation of accuracy between seeds
    device: str = "auto"
    quiet: bool = False
    seeds: int = 1  # of rows that do not say how many

    def plan(self) -> Plain:
        """Rows, runs and estimated time, after all checks."""
        rows = self.rows()
        minutes = {row.name: self._minutes(row) for row in rows}
        return {
            "rows": {row.name: row.seeds for row in rows},
            "runs": sum(row.seeds for row in rows),
            "minutes_per_run": minutes,
            "minutes": sum(row.seeds * minutes[row.name] for row in rows),
            "noise": noise_line(self.deviation),
        }

    def rows(self) -> list[Row]:
        """The parsed and checked rows."""
        if not (isfinite(self.deviation) and 0 < self.deviation < 1):
            raise ConfigError(f"a deviation of {self.deviation:g}", "give one above 0, such as 0.01 for a point")
        rows = [self._row(line) for line in self.lines]
        if len({row.name for row in rows}) < len(rows) or not rows:
            raise ConfigError("two rows have one name, or there are no rows", "write 'NAME: RECIPE KEY=VALUE ...'")
        for path in (self.data, self.val, *(own for row in rows for own in (row.data, row.val) if own is not None)):
            check_there(path)
        if len({Trial(row.name, 0, row.run, (), ()).directory for row in rows}) < len(rows):
            raise ConfigError(
                "two row names differ only in punctuation", "choose names that make different directories"
            )
        for row in rows:
            task, first = task_of(row.run), task_of(rows[0].run)
            if not task.outputs(1):
                raise ConfigError(f"row '{row.name}' trains no classifier", "use a chain that ends with a classifier")
            if task.metric != first.metric:
                what = f"row '{row.name}' is evaluated by {task.metric}, row '{rows[0].name}' by {first.metric}"
                raise ConfigError(what, "make a table for each metric")
            for run, start in self._versions(row):
                whole = run if isinstance(run, Chain) else Chain((Link("run", run),))
                check_links(whole, self._data(row), self._validation(row), start)
        return rows

    def _versions(self, row: Row) -> list[tuple[Run | Chain, Path | None]]:
        """What a row trains and starts from, as far as its seeds differ in more than their number."""
        return [(with_seed(row.run, seed), row.start_of(seed)) for seed in range(row.seeds)]

    def run(self) -> Plain:
        """All rows, seed by seed, so that every row has a number early; returns what results.json holds."""
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ConfigError("a table cannot run under torchrun", "start the same command in several processes")
        rows = self.rows()
        make_directory(self.out)
        inputs = {name: None if p is None else str(p) for name, p in self._inputs().items()}
        with locked(self.out, wait=True):
            claim(self.out, {**inputs, "settings": list(self.settings)}, "table")
            remove_unfinished(self.out)
            self._earlier(rows)  # what is malformed is found before anything is trained
        notice(f"{counted(sum(row.seeds for row in rows), 'run')}; {noise_line(self.deviation)}", self.quiet)
        trials = [
            Trial(row.name, seed, with_seed(row.run, seed), self._data(row), self._validation(row), row.start_of(seed))
            for seed in range(max(row.seeds for row in rows))
            for row in rows
            if seed < row.seeds
        ]
        done = run_trials(trials, self.out, self.device, self.quiet, lambda some: self._report(rows, some))
        return self._report(rows, done)

    def _row(self, line: str) -> Row:
        name, words, asked = split_row(line)
        if not words or "|" in name or asked == 0:
            raise ConfigError(f"cannot parse row '{line}'", "write 'NAME: RECIPE KEY=VALUE ... @SEEDS', NAME without |")
        recipe, own = words[0], own_of(words)
        if empty := next((key for key, value in own.items() if not value), None):
            raise ConfigError(f"'{empty}' of row '{line}' names no path", f"write {empty}=PATH")
        settings = [word for word in words[1:] if word.partition("=")[0] not in OWN]
        run = find(recipe).run
        if isinstance(run, Chain):
            links = equip(run, self.artefacts, strict=False).links
            last = resolve(links[-1].run, None, self.settings)
            run = resolve(Chain((*links[:-1], replace(links[-1], run=last))), None, settings)
        else:
            known = equip(run, self.artefacts, strict=False)
            run = resolve(resolve(known, None, self.settings), None, settings)
        data, val = (location(own[key]) if key in own else None for key in ("data", "val"))
        start = Path(own["start"]) if "start" in own else None
        seeds = self.seeds if asked is None else asked
        return Row(name or recipe, run, start, seeds, data, val, line, asked is not None, tuple(settings))

    def _data(self, row: Row) -> tuple[Location, ...]:
        return (row.data or self.data,) * row.links

    def _validation(self, row: Row) -> tuple[Location | None, ...]:
        return (*([None] * (row.links - 1)), row.val or self.val)

    def _minutes(self, row: Row) -> float:
        first = with_seed(row.run, 0)
        runs = [link.run for link in first.links] if isinstance(first, Chain) else [first]
        start = row.start_of(0) if len(runs) == 1 else None
        data = row.data or self.data
        return float(sum(plan(run, data, None, self.device, start)["estimated_minutes"] for run in runs))

    def _inputs(self) -> dict[str, Location | PathOrHub | None]:
        known = self.artefacts
        return {
            "data": self.data,
            "val": self.val,
            "tokenizer": known.tokenizer,
            "adapter": known.adapter,
            **({"maps": known.maps} if known.maps else {}),
        }

    def _report(self, rows: Sequence[Row], outcomes: Sequence[Outcome]) -> Plain:
        self._check_data(outcomes)
        with locked(self.out, wait=True):  # another process may be writing it
            lines, earlier = self._earlier(rows)
            results = self._summary(lines, [*earlier, *outcomes], task_of(rows[0].run))
            write_json(self.out / RESULTS, results)
            write(self.out / TABLE, markdown(results).encode())
        return results

    def _check_data(self, outcomes: Sequence[Outcome]) -> None:
        """Refuse runs of the same places that were trained on other data: those were exchanged in between."""
        first: dict[object, Outcome] = {}
        for one in (outcome for outcome in outcomes if outcome.samples):
            known = first.setdefault((one.trial.data, one.trial.val, last_of(one.trial.run).classes), one)
            if known.samples != one.samples:
                two = f"{self.out / known.trial.directory} and {self.out / one.trial.directory}"
                raise OutputError(f"{two} were trained on other data of the same name", "repeat it in another --out")

    def _earlier(self, rows: Sequence[Row]) -> tuple[dict[str, str], list[Outcome]]:
        """Lines of all rows, those of results.json first, and figures of those that this command does not name."""
        file, named = self.out / RESULTS, {row.name: row.line for row in rows}
        if not file.is_file():
            return named, []
        metric, known = task_of(rows[0].run).metric, read_json(file)
        try:
            if known["metric"] != metric:
                what = f"rows of {file} are evaluated by {known['metric']}, row '{rows[0].name}' by {metric}"
                raise OutputError(what, "choose another --out")
            left = [row for row in known["rows"] if row["row"] not in named]
            found = [
                Outcome(Trial(row["row"], seed, rows[0].run, (), ()), {metric: float(value)}, float(seconds))
                for row in left
                for seed, value, seconds in zip(row["seeds"], row[metric], row["seconds"], strict=True)
            ]
            lines = {row["row"]: named.get(row["row"], row["line"]) for row in known["rows"]}
        except (ValueError, KeyError, TypeError) as error:
            raise DamageError(f"{file} is malformed", f"restore it, or remove it to make it anew ({error})") from error
        return {**(lines if left else {}), **named}, found

    def _summary(self, lines: dict[str, str], outcomes: Sequence[Outcome], task: Task) -> Plain:
        order = list(lines)
        summary = summarise(sorted(outcomes, key=lambda o: order.index(o.trial.row)), task.metric)
        deviation, degrees = pooled_deviation([row[task.metric] for row in summary.values()])
        table = [
            {
                "row": name,
                "line": lines[name],
                **row,
                "seconds": [round(o.seconds, 1) for o in outcomes if o.trial.row == name],
            }
            for name, row in summary.items()
        ]
        return {
            "metric": task.metric,
            "higher_is_better": task.higher_is_better,
            "assumed_deviation": self.deviation,
            "deviation": deviation if degrees else None,
            "degrees_of_freedom": degrees,
            "rows": table,
        }


def last_of(run: Run | Chain) -> Run:
    """A run, or the last one of a chain."""
    return run.links[-1].run if isinstance(run, Chain) else run


def split_row(line: str) -> tuple[str, list[str], int | None]:
    """Name (empty: none is given), words and seeds (None: none are given) of a row; no words, or 0: it is malformed."""
    name, colon, rest = line.partition(": ")
    if not colon or "{" in name:  # of a setting
        name, rest = "", line
    text, at, seeds = rest.rpartition("@")
    if not at or "/" in seeds or "=" in seeds:  # an @ inside a setting
        text, seeds = rest, ""
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    if not seeds and text == rest:
        return name, words, None
    return name, words, int(seeds) if seeds.isdecimal() else 0


def own_of(words: Sequence[str]) -> dict[str, str]:
    """Data, validation data and start that a row names itself."""
    return {key: value for key, _, value in (word.partition("=") for word in words) if key in OWN}


def figure_name(metric: str) -> str:
    """The heading of a column of figures."""
    return {"top1": "accuracy (%)", "miou": "mIoU (%)", "box_ap": "AP of boxes (%)"}.get(metric, metric)


def markdown(results: Plain) -> str:
    """The results as a Markdown table."""
    figure = figure_name(str(results["metric"]))
    figure += "" if results["higher_is_better"] else " (lower is better)"
    lines = [f"| row | seeds | {figure} | vs first row | minutes per run |", "|---|---|---|---|---|"]
    for i, row in enumerate(results["rows"]):
        minutes = sum(row["seconds"]) / len(row["seconds"]) / 60
        apart = "" if i == 0 else difference_cell(row)
        lines.append(f"| {row['row']} | {len(row['seeds'])} | {accuracy_cell(row)} | {apart} | {minutes:.1f} |")
    lines.append(resolution_line(results["deviation"], results["degrees_of_freedom"]))
    return "\n".join(lines) + "\n"
