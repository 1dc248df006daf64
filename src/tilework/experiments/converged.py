"""Tables of converged runs, by the protocol of `experiments/protocol.py`.

OUT/results.json has every trial, its curve and its cost: with that file alone a table goes on where its runs were
removed. Rows that a later command does not name stay in it. Two processes started with the same command share the runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev

import numpy as np

from tilework.core.config import Plain, decode, encode, first_difference
from tilework.core.errors import ConfigError, DamageError, OutputError, TrainingError
from tilework.core.files import locked, make_directory, remove_unfinished, write, write_json
from tilework.core.sealed import read_json
from tilework.experiments.protocol import REACHED, Protocol, plateau
from tilework.experiments.runner import STATE, TRIAL, Outcome, Trial, claim, run_trials, task_of
from tilework.experiments.statistics import paired_deviation, resolvable
from tilework.experiments.table import OWN, RESULTS, TABLE, Row, Table, figure_name, last_of, own_of, split_row
from tilework.experiments.training_data import TrainingData
from tilework.report.curve_figures import curve_figure
from tilework.runs import Chain, Run
from tilework.runs.directory import RunDirectory
from tilework.train import HELD, TRAINING
from tilework.train.log import counted, notice

CURVES = "curves.png"


@dataclass(frozen=True)
class Known:
    """What a table has so far."""

    rows: Sequence[Row]
    inputs: Mapping[str, Plain]  # by row: start and data of its own, fingerprints, bytes per image
    outcomes: Mapping[Path, Outcome]


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
        fit = last_of(row.run).fit
        return fit.batch * fit.total_steps(last_of(row.run).samples or len(TrainingData.look(self.data).labels))

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
        for row in rows:
            last = f"links.{row.run.links[-1].name}.run." if isinstance(row.run, Chain) else ""
            own = (setting.removeprefix(last) for setting in row.settings if setting.startswith(last))
            self.protocol.refuse(row.name, (*self.settings, *own))
        return rows

    def _versions(self, row: Row) -> list[tuple[Run | Chain, Path | None]]:
        """Seeds draw other images, and may start from other runs."""
        data = TrainingData.look(self.data, last_of(row.run).classes)
        self.protocol.check(last_of(row.run), data.labels, data.classes)
        if row.data is not None and not np.array_equal(self._look(row).labels, data.labels):
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
            remove_unfinished(self.out)
            inputs_of = {row.name: self._inputs_of(row) for row in rows}
            known = self._known(rows, inputs_of)
            write_json(self.out / STATE, wanted)
        if self.restore:
            self._restore(rows, list(known.outcomes.values()))
        notice(f"{counted(len(rows) * self._runs_per_row, 'run')}; {self._noise()}", self.quiet)
        done = run_trials(
            (),
            self.out,
            self.device,
            self.quiet,
            lambda some: self._record(rows, some, inputs_of),
            lambda some: list(self._wanted(rows, some)),
            known.outcomes,
            self._diverged,
        )
        results = self._record(rows, done, inputs_of)
        if hopeless := [row.name for row in rows if self._best(row, done) is None]:
            raise TrainingError(f"row '{hopeless[0]}' diverged at every rate", "choose lower --rates in another --out")
        return results

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
        """The rate chosen for a row; None before all were tried, and where the row diverged at each."""
        task = task_of(row.run)
        held = {
            o.trial.rate: o.metrics.get(HELD + task.metric)
            for o in done
            if o.trial.row == row.name and o.trial.seed == 0 and o.trial.rate is not None
        }
        left = {rate: figure for rate, figure in held.items() if figure is not None}
        if set(held) != set(self.protocol.rates) or not left:
            return None
        return self.protocol.best(left, task.higher_is_better)

    def _diverged(self, trial: Trial) -> Outcome | None:
        """What a rate that cannot be trained counts as; the error is raised where the rate is chosen already."""
        if trial.seed != 0:
            return None
        notice(f"row '{trial.row}' diverged at rate {trial.rate:g}: the other rates are compared", self.quiet)
        spent = read_json(self.out / trial.directory / TRIAL)
        return Outcome(trial, {}, round(spent["seconds"], 1), round(spent["cpu_seconds"], 1))

    def _restore(self, rows: Sequence[Row], known: Sequence[Outcome]) -> None:
        """Train runs again that are gone, of the rates that were chosen; results.json keeps its figures."""
        best = {row.name: self._best(row, known) for row in rows}
        used = [one for one in known if one.trial.row in best and one.trial.rate == best[one.trial.row]]
        lost = {
            one.trial.directory: one
            for one in used
            if not RunDirectory(self.out / one.trial.directory / "run").finished
        }
        for one in run_trials([one.trial for one in lost.values()], self.out, self.device, self.quiet):
            metric = task_of(one.trial.run).metric
            again, before = one.metrics[metric], lost[one.trial.directory].metrics[metric]
            if again != before:
                what = f"{one.trial.directory} has {metric} {again:.4f} this time, {before:.4f} in {RESULTS}"
                notice(f"{what}, which keeps that: another machine rounds otherwise", self.quiet)

    def _look(self, row: Row) -> TrainingData:
        return TrainingData.look(row.data or self.data, last_of(row.run).classes)

    def _inputs_of(self, row: Row) -> Plain:
        """What a row is trained and judged on."""
        train, val = self._look(row), TrainingData.look(row.val or self.val, last_of(row.run).classes)
        own = {"start": row.start, "data": row.data, "val": row.val}
        return {
            **{name: None if path is None else str(path) for name, path in own.items()},
            "samples": {"train": train.fingerprint, "val": val.fingerprint},
            "bytes_per_image": train.bytes,
        }

    def _known(self, rows: Sequence[Row], inputs: Mapping[str, Plain]) -> Known:
        """What results.json has already, whether or not its runs are still there.

        Its rows are in their order, also where this command does not name them, then come new ones.
        """
        file, named = self.out / RESULTS, {row.name: row for row in rows}
        if not file.is_file():
            return Known(rows, inputs, {})
        plain = read_json(file)
        try:
            trained, found, told = {one["row"] for one in plain["trials"]}, [], dict(inputs)
            for one in plain["rows"]:
                run = decode(Run | Chain, plain["settings"][one["row"]])
                row = named.pop(one["row"], None)
                if row is None:
                    row = Row(one["row"], run, None, self.protocol.seeds, line=one["line"])
                    told[row.name] = {key: one[key] for key in (*OWN, "samples", "bytes_per_image") if key in one}
                elif row.name in trained:  # one that was named only may change
                    self._check_same(row, run, one, inputs[row.name])
                found.append(row)
            if strays := trained - {row.name for row in found}:
                raise ValueError(f"trials of '{min(strays)}', which is no row")
            known = Known([*found, *named.values()], told, self._outcomes(found, plain["trials"]))
            self._results(known)  # so that what is malformed is found before anything is trained
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise DamageError(f"{file} is malformed", f"restore it ({error})") from error
        return known

    def _outcomes(self, rows: Sequence[Row], trials: Sequence[Plain]) -> dict[Path, Outcome]:
        named, found = {row.name: row for row in rows}, {}
        for one in trials:
            trial = self._trial(named[one["row"]], one["seed"], one["rate"])
            figures, metric = dict(one["figures"]), task_of(trial.run).metric
            judged = (metric, HELD + metric) if trial.seed == 0 else (metric,)
            if not all(isinstance(figures[name], float | int) for name in judged if figures or trial.seed):
                raise ValueError(f"figures of {trial.directory} are no numbers")
            outcome = Outcome(trial, figures, float(one["seconds"]), float(one["cpu_seconds"]), one["curve"])
            found[trial.directory] = outcome
        return found

    def _check_same(self, row: Row, before: Run | Chain, told: Plain, inputs: Plain) -> None:
        """Refuse a row that has other settings, another start or other data than its trials."""
        file, where = self.out / RESULTS, f"row '{row.name}' in"
        if before != row.run:
            key, old, new = first_difference(encode(before), encode(row.run))
            what = f"{where} {file} was trained with {key}={old}, not {new}"
            raise OutputError(what, "choose another --out, or another name for the row")
        earlier = told if OWN[0] in told else own_of(split_row(told["line"])[1])  # older files have the line alone
        for key in OWN:
            if earlier.get(key) != inputs[key]:
                what = f"{where} {file} was trained with {key}={earlier.get(key)}, not {inputs[key]}"
                raise OutputError(what, "choose another --out, or another name for the row")
        if told.get("samples", inputs["samples"]) != inputs["samples"]:
            what = f"{where} {file} was trained or judged on other images than lie there now"
            raise OutputError(what, "choose another --out, or restore its data")

    def _record(self, rows: Sequence[Row], outcomes: Sequence[Outcome], inputs: Mapping[str, Plain]) -> Plain:
        with locked(self.out, wait=True):  # another process may have more of them, and may be writing them now
            known = self._known(rows, inputs)
            outcomes_of = {**known.outcomes, **{o.trial.directory: o for o in outcomes}}
            results = self._results(replace(known, outcomes=outcomes_of))
            write_json(self.out / RESULTS, results)
            write(self.out / TABLE, markdown(results).encode())
            write(self.out / CURVES, curve_figure(results))
        return results

    def _results(self, known: Known) -> Plain:
        rows, outcomes = known.rows, list(known.outcomes.values())
        protocol = replace(self.protocol, seeds=self._seeds_before())  # another process may have asked for more
        task = task_of(rows[0].run)
        best = {row.name: self._best(row, outcomes) for row in rows}
        used = [o for o in outcomes if o.trial.rate == best[o.trial.row]]
        values = {
            row.name: {o.trial.seed: o.metrics[task.metric] for o in used if o.trial.row == row.name} for row in rows
        }
        whole = [
            [found[seed] for seed in range(protocol.seeds)] for found in values.values() if len(found) == protocol.seeds
        ]
        deviation, degrees = paired_deviation(whole)
        smallest = resolvable(deviation, protocol.seeds, protocol.seeds, degrees) if degrees else None
        table: list[Plain] = []
        for row in rows:
            mine, own = [o for o in used if o.trial.row == row.name], values[row.name]
            shared = sorted(own.keys() & values[rows[0].name].keys())
            pairs = [own[seed] - values[rows[0].name][seed] for seed in shared]
            held = {
                f"{o.trial.rate:g}": o.metrics.get(HELD + task.metric)  # None: it diverged
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
                    if smallest is None or len(pairs) < protocol.seeds
                    else abs(mean(pairs)) > smallest,
                    "plateau": [plateau(o.curve) for o in mine],
                    "cpu_minutes": [round(o.cpu_seconds / 60, 2) for o in mine],
                    **known.inputs[row.name],
                }
            )
        first = table[0]["training_right"]
        return {
            "metric": task.metric,
            "judged": task.judged,
            "higher_is_better": task.higher_is_better,
            "protocol": encode(protocol),
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
