"""Any list of recipes on the same data, each with several seeds: ablations and sweeps.

Rows are written "NAME: RECIPE [SETTING ...] [start=RUN] [@SEEDS]", or RECIPE alone.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tilework.core.config import resolve
from tilework.core.errors import ConfigError
from tilework.core.files import make_directory, write, write_json
from tilework.core.location import Location
from tilework.experiments.runner import (
    Outcome,
    Trial,
    accuracy_cell,
    claim,
    difference_cell,
    resolution_line,
    run_trials,
    summarise,
    task_of,
    with_seed,
)
from tilework.experiments.statistics import pooled_deviation, resolvable
from tilework.recipes import find
from tilework.runs import Artefacts, Chain, Link, Run, check_links, equip, plan
from tilework.runs.build import check_there
from tilework.train.log import counted, notice

RESULTS, TABLE = "results.json", "table.md"


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    name: str
    run: Run | Chain
    start: Path | None
    seeds: int

    @property
    def links(self) -> int:
        """Data sets that it takes."""
        return len(self.run.links) if isinstance(self.run, Chain) else 1


@dataclass(frozen=True)
class Table:
    """One table in one directory; what is done is not done again."""

    lines: Sequence[str]
    data: Location
    val: Location
    out: Path
    settings: Sequence[str] = ()  # over every run; of chains, over the last link
    artefacts: Artefacts = field(default_factory=Artefacts)
    deviation: float = 0.01  # between seeds, assumed before any is known
    device: str = "auto"
    quiet: bool = False

    def plan(self) -> dict[str, Any]:
        """What would be done and how long it would take, after all checks."""
        rows = self.rows()
        minutes = {row.name: self._minutes(row) for row in rows}
        return {
            "rows": {row.name: row.seeds for row in rows},
            "runs": sum(row.seeds for row in rows),
            "minutes_per_run": minutes,
            "minutes": sum(row.seeds * minutes[row.name] for row in rows),
            "smallest_difference": self._promise(),
        }

    def rows(self) -> list[Row]:
        """The rows; refuses what cannot work."""
        rows = [self._row(line) for line in self.lines]
        if len({row.name for row in rows}) < len(rows) or not rows:
            raise ConfigError("a row is named twice, or there is none", "write 'NAME: RECIPE SETTING ...' for each")
        for path in (self.data, self.val):
            check_there(path)
        if len({Trial(row.name, 0, row.run, (), ()).directory for row in rows}) < len(rows):
            raise ConfigError("two rows differ in signs only", "choose names that make different directories")
        for row in rows:
            task, first = task_of(row.run), task_of(rows[0].run)
            if not task.outputs(1):
                raise ConfigError(f"row '{row.name}' trains no classifier", "use a chain that ends in one")
            if task.metric != first.metric:
                what = f"row '{row.name}' is judged by {task.metric}, row '{rows[0].name}' by {first.metric}"
                raise ConfigError(what, "make a table of each")
            whole = row.run if isinstance(row.run, Chain) else Chain((Link("run", row.run),))
            check_links(whole, [self.data] * row.links, self._judges(row), row.start)
        return rows

    def run(self) -> dict[str, Any]:
        """All rows, seed by seed, so that every row has a number early; returns what results.json holds."""
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ConfigError("a table is not run under torchrun", "start the same command several times")
        rows = self.rows()
        make_directory(self.out)
        places = {name: None if p is None else str(p) for name, p in self._places().items()}
        claim(self.out, {**places, "settings": list(self.settings)}, "table")
        notice(f"{counted(sum(row.seeds for row in rows), 'run')}; {self._promise()}", self.quiet)
        trials = [
            Trial(row.name, seed, with_seed(row.run, seed), (self.data,) * row.links, self._judges(row), row.start)
            for seed in range(max(row.seeds for row in rows))
            for row in rows
            if seed < row.seeds
        ]
        done = run_trials(trials, self.out, self.device, self.quiet, lambda some: self._report(rows, some))
        return self._report(rows, done)

    def _row(self, line: str) -> Row:
        name, colon, rest = line.partition(": ")
        text, at, seeds = (rest if colon else line).rpartition("@")
        if not at or "/" in seeds or "=" in seeds:  # a sign inside a setting
            text, seeds = rest if colon else line, "1"
        try:
            words = shlex.split(text)
        except ValueError:
            words = []
        if not words or not (seeds.isdecimal() and int(seeds) > 0):
            raise ConfigError(f"row '{line}' makes no sense", "write 'NAME: RECIPE SETTING ... @SEEDS'")
        recipe, *settings = words
        starts = [word.removeprefix("start=") for word in settings if word.startswith("start=")]
        settings = [word for word in settings if not word.startswith("start=")]
        run = find(recipe).run
        if isinstance(run, Chain):
            links = equip(run, self.artefacts, strict=False).links
            last = resolve(links[-1].run, None, self.settings)
            run = resolve(Chain((*links[:-1], replace(links[-1], run=last))), None, settings)
        else:
            known = equip(run, self.artefacts, strict=False)
            run = resolve(known, None, [*self.settings, *settings])
        return Row(name if colon else recipe, run, Path(starts[-1]) if starts else None, int(seeds))

    def _judges(self, row: Row) -> tuple[Location | None, ...]:
        return (*([None] * (row.links - 1)), self.val)

    def _minutes(self, row: Row) -> float:
        runs = [link.run for link in row.run.links] if isinstance(row.run, Chain) else [row.run]
        start = row.start if len(runs) == 1 else None
        return float(sum(plan(run, self.data, None, self.device, start)["estimated_minutes"] for run in runs))

    def _places(self) -> dict[str, Location | None]:
        known = self.artefacts
        return {
            "data": self.data,
            "val": self.val,
            "tokenizer": known.tokenizer,
            "adapter": known.adapter,
            **({"maps": known.maps} if known.maps else {}),
        }

    def _promise(self) -> str:
        smallest = 100 * resolvable(self.deviation, 1, 1)
        return (
            f"if seeds differ by {100 * self.deviation:g} points, two rows of one seed are told apart from "
            f"{smallest:.1f} points on, of two seeds from {smallest / 2**0.5:.1f}"
        )

    def _report(self, rows: Sequence[Row], outcomes: Sequence[Outcome]) -> dict[str, Any]:
        task = task_of(rows[0].run)
        order = [row.name for row in rows]
        summary = summarise(sorted(outcomes, key=lambda o: order.index(o.trial.row)), task.metric)
        deviation, degrees = pooled_deviation([row[task.metric] for row in summary.values()])
        lines = dict(zip((row.name for row in rows), self.lines, strict=True))
        table = [
            {
                "row": name,
                "line": lines[name],
                **row,
                "seconds": [round(o.seconds, 1) for o in outcomes if o.trial.row == name],
            }
            for name, row in summary.items()
        ]
        results = {
            "metric": task.metric,
            "higher_is_better": task.higher_is_better,
            "assumed_deviation": self.deviation,
            "deviation": deviation if degrees else None,
            "degrees_of_freedom": degrees,
            "rows": table,
        }
        write_json(self.out / RESULTS, results)
        write(self.out / TABLE, markdown(results).encode())
        return results


def markdown(results: dict[str, Any]) -> str:
    """The table for people."""
    figure = "accuracy" if results["metric"] == "top1" else results["metric"]
    figure += "" if results["higher_is_better"] else " (lower is better)"
    lines = [f"| row | seeds | {figure} | from the first row | minutes per run |", "|---|---|---|---|---|"]
    for i, row in enumerate(results["rows"]):
        minutes = sum(row["seconds"]) / len(row["seconds"]) / 60
        apart = "" if i == 0 else difference_cell(row)
        lines.append(f"| {row['row']} | {len(row['seeds'])} | {accuracy_cell(row)} | {apart} | {minutes:.1f} |")
    lines.append(resolution_line(results["deviation"], results["degrees_of_freedom"]))
    return "\n".join(lines) + "\n"
