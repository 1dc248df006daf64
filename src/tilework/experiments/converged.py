"""Tables of converged runs, by the protocol of `experiments/protocol.py`.

OUT/results.json has every trial, its curve and its cost: with that file alone a table goes on where its runs were
removed. Rows that a later command does not name stay in it. Two processes started with the same command share the runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev

import numpy as np

from tilework.core.config import Plain, decode, encode, first_difference
from tilework.core.errors import ConfigError, DamageError, OutputError
from tilework.core.files import locked, make_directory, remove_unfinished, write, write_json
from tilework.core.sealed import read_json
from tilework.experiments.protocol import REACHED, Protocol, plateau
from tilework.experiments.runner import STATE, Outcome, Trial, claim, run_trials, task_of
from tilework.experiments.statistics import paired_deviation, resolvable
from tilework.experiments.table import RESULTS, TABLE, Row, Table, figure_name
from tilework.experiments.training_data import TrainingData
from tilework.report.curve_figures import curve_figure
from tilework.runs import Chain, Run
from tilework.train import HELD, TRAINING
from tilework.train.log import counted, notice

CURVES = "curves.png"


@dataclass(frozen=True)
class ConvergedTable(Table):
    """A table whose rows are trained to convergence on a small part of the data."""

    protocol: Protocol = field(default_factory=Protocol)
    restore: bool = False  # train again what results.json has figures of but whose runs are gone

    def plan(self) -> Plain:
        """Rows, runs and estimated time, after all checks."""
        rows = self.rows()
        plans = super().plan()
        runs = len(rows) * self._runs_per_row
        share = self.protocol.samples * self.protocol.passes
        minutes = {
            row.name: plans["minutes_per_run"][row.name] * share / self._samples_of(row) for row in rows
        }  # of the recipe's own length
        return {
            "rows": {row.name: self.protocol.seeds for row in rows},
            "runs": runs,
            "minutes_per_run": minutes,
            "minutes": self._runs_per_row * sum(minutes.values()),
            "noise": self._noise(),
        }

    @property
    def _runs_per_row(self) -> int:
        return len(self.protocol.rates) + self.protocol.seeds - 1

    def _samples_of(self, row: Row) -> int:
        fit = _last(row.run).fit
        return fit.batch * fit.total_steps(_last(row.run).samples or len(TrainingData.look(self.data).labels))

    def _noise(self) -> str:
        smallest = 100 * resolvable(self.deviation, self.protocol.seeds, self.protocol.seeds)
        return (
            f"with {counted(self.protocol.seeds, 'seed')} per row, differences below {smallest:.1f} points are within "
            f"noise (95 %), assuming a standard deviation of {100 * self.deviation:g} points between seeds"
        )

    def rows(self) -> list[Row]:
        """The parsed and checked rows; seeds are those of the protocol."""
        rows = super().rows()
        if any(row.has_seeds for row in rows):
            raise ConfigError("a row names its seeds with @, the protocol has its own", "leave @ out, use --seeds")
        return rows

    def _versions(self, row: Row) -> list[tuple[Run | Chain, Path | None]]:
        """Seeds draw other images, and may start from other runs."""
        data = TrainingData.look(self.data)
        self.protocol.check(_last(row.run), data.labels, data.classes)
        if row.data is not None and not np.array_equal(TrainingData.look(row.data).labels, data.labels):
            what = f"row '{row.name}' draws from {row.data}, whose images are others than those of {self.data}"
            raise ConfigError(what, "give data of the same images in the same order")
        trials = (self._trial(row, seed, self.protocol.rates[0]) for seed in range(self.protocol.seeds))
        return [(trial.run, trial.start) for trial in trials]

    def run(self) -> Plain:
        """Row by row: every rate with the first seed, then the other seeds with the best; returns results.json."""
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ConfigError("a table cannot run under torchrun", "start the same command in several processes")
        rows = self.rows()
        make_directory(self.out)
        inputs = {name: None if p is None else str(p) for name, p in self._inputs().items()}
        with locked(self.out, wait=True):
            wanted = {**inputs, "settings": list(self.settings), "protocol": encode(self.protocol)}
            fewer = {**encode(self.protocol), "seeds": min(self._seeds_before(), self.protocol.seeds)}
            claim(self.out, {**wanted, "protocol": fewer}, "table")
            write_json(self.out / STATE, wanted)
            remove_unfinished(self.out)
        known = self._known(rows)
        if self.restore:
            known = {path: one for path, one in known.items() if not self._lost(one, rows, list(known.values()))}
        notice(f"{counted(len(rows) * self._runs_per_row, 'run')}; {self._noise()}", self.quiet)
        done = run_trials(
            (),
            self.out,
            self.device,
            self.quiet,
            lambda some: self._report(rows, some),
            lambda some: list(self._wanted(rows, some)),
            known,
        )
        return self._report(rows, done)

    def _seeds_before(self) -> int:
        """Seeds that the table was begun with; more may follow, as a seed is known by its number alone."""
        file = self.out / STATE
        known = read_json(file).get("protocol") if file.is_file() else None
        seeds = known.get("seeds") if isinstance(known, dict) else None
        return seeds if isinstance(seeds, int) else self.protocol.seeds  # `claim` refuses what is neither

    def _wanted(self, rows: Sequence[Row], done: Sequence[Outcome]) -> Iterator[Trial]:
        """The trials that can be named so far: other seeds of a row follow when its rate is known."""
        for row in rows:
            for rate in self.protocol.rates:
                yield self._trial(row, 0, rate)
            best = self._best(row, done)
            if best is not None:
                for seed in range(1, self.protocol.seeds):
                    yield self._trial(row, seed, best)

    def _trial(self, row: Row, seed: int, rate: float) -> Trial:
        run = self.protocol.run(row.run, seed, rate)
        return Trial(row.name, seed, run, self._data(row), self._validation(row), row.start_of(seed), rate)

    def _best(self, row: Row, done: Sequence[Outcome]) -> float | None:
        task = task_of(row.run)
        held = {
            o.trial.rate: o.metrics[HELD + task.metric]
            for o in done
            if o.trial.row == row.name and o.trial.seed == 0 and o.trial.rate is not None
        }
        if set(held) != set(self.protocol.rates):
            return None
        return self.protocol.best(held, task.higher_is_better)

    def _lost(self, outcome: Outcome, rows: Sequence[Row], known: Sequence[Outcome]) -> bool:
        """Whether an outcome has the rate that was chosen for its row, and its run is gone."""
        row = next(row for row in rows if row.name == outcome.trial.row)
        directory = self.out / outcome.trial.directory / "run"
        return outcome.trial.rate == self._best(row, known) and not directory.is_dir()

    def _with_earlier(self, rows: Sequence[Row]) -> list[Row]:
        """Rows of results.json, in their order and also where this command does not name them, then new ones."""
        named = {row.name: row for row in rows}
        try:
            plain = json.loads((self.out / RESULTS).read_bytes())
            earlier = [(row["row"], row["line"], plain["settings"][row["row"]]) for row in plain["rows"]]
        except FileNotFoundError:
            return list(rows)
        found = [
            named.pop(name) if name in named else replace(self._row(line), run=decode(Run | Chain, settings))
            for name, line, settings in earlier
        ]
        return [*found, *named.values()]

    def _known(self, rows: Sequence[Row]) -> dict[Path, Outcome]:
        """Outcomes that results.json has already, whether or not their runs are still there."""
        file = self.out / RESULTS
        if not file.is_file():
            return {}
        try:
            plain = json.loads(file.read_bytes())
            settings, trials = plain["settings"], plain["trials"]
            named = {row.name: row for row in rows}
            for name in {one["row"] for one in trials} & named.keys():  # a row that was named only may change
                before = decode(type(named[name].run), settings[name])
                if before != named[name].run:
                    key, old, new = first_difference(encode(before), encode(named[name].run))
                    what = f"row '{name}' in {file} was trained with {key}={old}, not {new}"
                    raise OutputError(what, "choose another --out, or another name for the row")
            return {
                trial.directory: Outcome(trial, one["figures"], one["seconds"], one["cpu_seconds"], one["curve"])
                for one in trials
                if one["row"] in named
                for trial in [self._trial(named[one["row"]], one["seed"], one["rate"])]
            }
        except (ValueError, KeyError, TypeError) as error:
            raise DamageError(f"{file} is malformed", f"restore it ({error})") from error

    def _report(self, rows: Sequence[Row], outcomes: Sequence[Outcome]) -> Plain:
        with locked(self.out, wait=True):  # another process may have more of them, and may be writing them now
            rows = self._with_earlier(rows)
            outcomes = list({**self._known(rows), **{o.trial.directory: o for o in outcomes}}.values())
            results = self._results(rows, outcomes)
            write_json(self.out / RESULTS, results)
            write(self.out / TABLE, markdown(results).encode())
            write(self.out / CURVES, curve_figure(results))
        return results

    def _results(self, rows: Sequence[Row], outcomes: Sequence[Outcome]) -> Plain:
        task = task_of(rows[0].run)
        best = {row.name: self._best(row, outcomes) for row in rows}
        used = [o for o in outcomes if o.trial.rate == best[o.trial.row]]
        values = {
            row.name: {o.trial.seed: o.metrics[task.metric] for o in used if o.trial.row == row.name} for row in rows
        }
        whole = [
            [found[seed] for seed in range(self.protocol.seeds)]
            for found in values.values()
            if len(found) == self.protocol.seeds
        ]
        deviation, degrees = paired_deviation(whole)
        smallest = resolvable(deviation, self.protocol.seeds, self.protocol.seeds, degrees) if degrees else None
        table: list[Plain] = []
        for row in rows:
            mine, own = [o for o in used if o.trial.row == row.name], values[row.name]
            shared = sorted(own.keys() & values[rows[0].name].keys())
            pairs = [own[seed] - values[rows[0].name][seed] for seed in shared]
            held = {
                f"{o.trial.rate:g}": o.metrics[HELD + task.metric]
                for o in outcomes
                if o.trial.row == row.name and o.trial.seed == 0
            }
            figures = (task.metric, task.right or task.metric)
            trained, right = ([o.metrics[TRAINING + name] for o in mine] for name in figures)
            table.append(
                {
                    "row": row.name,
                    "line": row.line,
                    "rate": best[row.name],
                    "held_by_rate": held,
                    "seeds": sorted(own),
                    task.metric: [own[seed] for seed in sorted(own)],
                    "mean": mean(own.values()) if own else None,
                    "deviation": stdev(own.values()) if len(own) > 1 else None,
                    "training": mean(trained) if trained else None,
                    "training_right": mean(right) if right else None,
                    "differences": pairs,
                    "difference": mean(pairs) if pairs else None,
                    "resolved": None
                    if smallest is None or len(pairs) < self.protocol.seeds
                    else abs(mean(pairs)) > smallest,
                    "plateau": [plateau(o.curve) for o in mine],
                    "cpu_minutes": [round(o.cpu_seconds / 60, 2) for o in mine],
                    "bytes_per_image": TrainingData.look(row.data or self.data).bytes,
                }
            )
        first = table[0]["training_right"]
        return {
            "metric": task.metric,
            "judged": task.judged,
            "higher_is_better": task.higher_is_better,
            "protocol": encode(self.protocol),
            "assumed_deviation": self.deviation,
            "deviation": deviation if degrees else None,
            "degrees_of_freedom": degrees,
            "resolvable": smallest,
            "converged": None if first is None else bool(first >= REACHED),
            "cpu_minutes": round(sum(o.cpu_seconds for o in outcomes) / 60, 1),
            "rows": table,
            "settings": {row.name: encode(row.run) for row in rows},
            "trials": [
                {
                    "row": o.trial.row,
                    "seed": o.trial.seed,
                    "rate": o.trial.rate,
                    "figures": o.metrics,
                    "seconds": o.seconds,
                    "cpu_seconds": o.cpu_seconds,
                    "curve": list(o.curve),
                }
                for o in sorted(outcomes, key=lambda o: (o.trial.row, o.trial.seed, o.trial.rate or 0.0))
            ],
        }


def _last(run: Run | Chain) -> Run:
    return run.links[-1].run if isinstance(run, Chain) else run


def markdown(results: Plain) -> str:
    """The results as a Markdown table, with what it could resolve and whether it converged."""
    figure = figure_name(str(results["metric"]))
    lines = [
        f"| row | rate | training {figure} | validation {figure} | paired difference | plateau at pass | "
        "CPU minutes per run | bytes per image |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for i, row in enumerate(results["rows"]):
        if row["mean"] is None:
            continue
        spread = "" if row["deviation"] is None else f" ± {100 * row['deviation']:.1f}"
        apart = "" if i == 0 or row["difference"] is None else f"{100 * row['difference']:+.1f}"
        if apart and row["resolved"] is None:
            apart += f" ({counted(len(row['differences']), 'seed')})"
        elif apart and not row["resolved"]:
            apart += " (*not resolved*)"
        tried = results["protocol"]["rates"]
        edge = ", lowest tried" if row["rate"] == min(tried) else ", highest tried" if row["rate"] == max(tried) else ""
        reached = "/".join("-" if one is None else str(one) for one in row["plateau"])
        minutes = mean(row["cpu_minutes"])
        stored = " + ".join(f"{size:,.0f} {what}" for what, size in row.get("bytes_per_image", {}).items())
        lines.append(
            f"| {row['row']} | {row['rate']:g}{edge} | {100 * row['training']:.1f} | {100 * row['mean']:.1f}{spread} | "
            f"{apart} | {reached} | {minutes:.1f} | {stored} |"
        )
    lines.append("")
    if results["resolvable"] is not None:
        lines.append(
            f"Differences below {100 * results['resolvable']:.1f} points are not resolved (95 %): rows differ by "
            f"{100 * results['deviation']:.2f} points from seed to seed after each seed's mean is subtracted "
            f"({results['degrees_of_freedom']} degrees of freedom)."
        )
    if results["converged"] is not None:
        said, right = "converged" if results["converged"] else "NOT converged", _right(results["rows"][0])
        lines.append(
            f"The first row is right on {100 * right:.1f} % of its training {results.get('judged', 'images')}: {said} "
            f"({100 * REACHED:.0f} % is the bar). {results['cpu_minutes']:.0f} CPU minutes in all."
        )
    return "\n".join(lines) + "\n"


def _right(row: Plain) -> float:
    """Share of training images or pixels that a row is right on; older files have that of classifiers, their figure."""
    return float(row["training_right" if "training_right" in row else "training"])
