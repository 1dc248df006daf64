"""Lists of resumable runs, and the statistics of their results.

OUT/runs/ROW/seed-N holds one run; a finished run is not repeated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from statistics import mean, stdev
from time import monotonic, process_time, sleep

from tilework.core.config import Plain, encode, first_difference
from tilework.core.errors import DamageError, InUseError, OutputError, TrainingError
from tilework.core.files import is_free, locked, make_directory, remove_unfinished, write_json
from tilework.core.location import Location
from tilework.core.sealed import read_json
from tilework.experiments.protocol import curve
from tilework.experiments.statistics import paired_difference, pooled_deviation, resolvable
from tilework.objectives import Task
from tilework.runs import Chain, Link, Run, train, train_chain
from tilework.runs.directory import RESULTS, RunDirectory

TRIAL, STATE = "trial.json", "settings.json"
COMPARED = ("run", "data", "val", "start")  # what must be equal for a trial to go on
PAUSE = 2.0  # seconds between checks for runs that other processes have finished


@dataclass(frozen=True)
class Trial:
    """One run of a table."""

    row: str
    seed: int
    run: Run | Chain
    data: tuple[Location, ...]
    val: tuple[Location | None, ...]
    start: Path | None = None  # run or checkpoint to initialise from
    rate: float | None = None  # learning rate, in a table that chooses it

    @property
    def directory(self) -> Path:
        """Directory of the run, relative to that of the table."""
        return directory_of(self.row) / f"seed-{self.seed}{'' if self.rate is None else f'-rate-{self.rate:g}'}"


@dataclass(frozen=True)
class Outcome:
    """Result of a trial."""

    trial: Trial
    metrics: dict[str, float]
    seconds: float  # in total, if it was interrupted
    cpu_seconds: float = 0.0  # of all threads
    curve: Sequence[Plain] = ()  # its evaluations: pass, loss, figures
    samples: Mapping[str, str | None] = field(default_factory=dict)  # fingerprints of its data, by its run


def directory_of(row: str) -> Path:
    """Directory of the runs of a row, relative to that of the table."""
    return Path("runs") / (re.sub(r"[^\w.%+-]+", "-", row).strip("-.") or "row")


def with_seed(run: Run | Chain, seed: int) -> Run | Chain:
    """The same settings with another seed, of initial weights, data order and augmentation; maps may differ by it."""
    if isinstance(run, Chain):
        links = ((link.name, with_seed(link.run, seed)) for link in run.links)
        return Chain(tuple(Link(name, one) for name, one in links if isinstance(one, Run)))
    return replace(run, maps=run.maps.replace("{seed}", str(seed)), fit=replace(run.fit, seed=seed))


def task_of(run: Run | Chain) -> Task:
    """Task of a run, or of the last run of a chain."""
    return (run.links[-1].run if isinstance(run, Chain) else run).objective.task


def run_trial(trial: Trial, out: Path, device: str = "auto", quiet: bool = False) -> Outcome:
    """Run or resume a trial, or read its results; raises InUseError while another process runs it."""
    directory = out / trial.directory
    settings = {"run": encode(trial.run), "data": [str(p) for p in trial.data], "val": [str(p) for p in trial.val]}
    settings |= {"start": str(trial.start)} if trial.start else {}
    make_directory(directory)
    with locked(directory):
        remove_unfinished(directory)
        known = {**settings, "seconds": 0.0, "cpu_seconds": 0.0}
        if (directory / TRIAL).is_file():
            known = {"cpu_seconds": 0.0, **read_json(directory / TRIAL)}
        if not all(isinstance(known.get(name), float | int) for name in ("seconds", "cpu_seconds")):
            raise DamageError(f"{directory / TRIAL} is malformed", "restore it, or remove the directory")
        if {key: value for key, value in known.items() if key in COMPARED} != settings:
            raise OutputError(f"{directory} holds a run with other settings", "choose another --out or use those")
        if not (directory / "run" / RESULTS).is_file():
            write_json(directory / TRIAL, known)
            begun, busy = monotonic(), process_time()
            title = f"{trial.row} seed {trial.seed}" + ("" if trial.rate is None else f" rate {trial.rate:g}")
            try:
                if isinstance(trial.run, Chain):
                    train_chain(trial.run, trial.data, trial.val, directory / "run", device, title, quiet, trial.start)
                else:
                    train(trial.run, trial.data[0], trial.val[0], directory / "run", device, title, quiet, trial.start)
            finally:
                known["seconds"] += monotonic() - begun
                known["cpu_seconds"] += process_time() - busy
                write_json(directory / TRIAL, known)
        metrics = _figures(directory / "run" / RESULTS, task_of(trial.run).metric)
    evaluations = curve(directory / "run", task_of(trial.run).metric)
    samples = RunDirectory.find(directory / "run").samples()
    return Outcome(trial, metrics, round(known["seconds"], 1), round(known["cpu_seconds"], 1), evaluations, samples)


def _figures(file: Path, metric: str) -> dict[str, float]:
    """What a run ended with; the figure that tables compare must be a number."""
    found = read_json(file)
    if not isinstance(found.get(metric), float | int) or not isfinite(found[metric]):
        raise DamageError(f"{file} has no figure '{metric}'", "restore it, or remove the run to train it again")
    return found


def run_trials(
    trials: Sequence[Trial],
    out: Path,
    device: str = "auto",
    quiet: bool = False,
    after: Callable[[list[Outcome]], object] = lambda done: None,
    then: Callable[[list[Outcome]], Sequence[Trial]] = lambda done: (),
    known: Mapping[Path, Outcome] | None = None,
    diverged: Callable[[Trial], Outcome | None] = lambda trial: None,
) -> list[Outcome]:
    """Run all trials; several processes with the same list share them.

    after: called with all outcomes so far, when one was added that is not known. then: further trials that the
    outcomes so far ask for. known: outcomes of runs whose directories may be gone. diverged: what counts as the
    outcome of a trial that cannot be trained; None: the error is raised.
    """
    done: dict[Path, Outcome] = {}
    while True:
        queue = [*trials, *then(list(done.values()))]
        left = [trial for trial in queue if trial.directory not in done]
        if not left:
            return [done[trial.directory] for trial in queue]
        before = len(done)
        for trial in left:
            if known and trial.directory in known:
                done[trial.directory] = known[trial.directory]
                break
            try:
                done[trial.directory] = run_trial(trial, out, device, quiet)
            except InUseError:
                continue  # another process runs it
            except TrainingError:
                if (outcome := diverged(trial)) is None:
                    raise
                done[trial.directory] = outcome
            after(list(done.values()))
            break  # what comes next may follow from this one
        if len(done) == before:
            sleep(PAUSE)


def check_out(out: Path, *inputs: Path) -> None:
    """Refuse to write among the images that are read."""
    if out.exists() and not out.is_dir():
        raise OutputError(f"{out} is a file", "choose another --out")
    for path in inputs:
        if path.is_dir() and out.absolute().is_relative_to(path.absolute()):
            raise OutputError(f"{out} lies among the images in {path}", "choose another --out")


def claim(out: Path, state: Plain, name: str) -> None:
    """Write the settings of an experiment to its directory; refuse one that holds something else.

    Fingerprints of data ("samples"), which older versions did not write, are added.
    """
    file = out / STATE
    if not file.exists() and is_free(out):
        write_json(file, state)
        return
    if not file.is_file():
        raise OutputError(f"{out} holds other files", "choose another --out")
    known, asked = read_json(file), json.loads(json.dumps(state))
    added = {"samples": asked["samples"]} if "samples" in asked and "samples" not in known else {}
    if {**known, **added} != asked:
        key, old, new = first_difference({**known, **added}, asked)
        if key.startswith("samples"):
            raise OutputError(f"{out} holds a {name} of other images than lie there now", "choose another --out")
        what = f" ({key}: {_short(old)}, not {_short(new)})"
        hint = f"choose another --out or use those in {file}"
        raise OutputError(f"{out} holds a {name} with other settings{what}", hint)
    if added:
        write_json(file, asked)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def accuracy_cell(row: Plain) -> str:
    """Mean and standard deviation of a row, in percent."""
    spread = f" ± {100 * row['deviation']:.1f}" if row["deviation"] is not None else ""
    return f"{100 * row['mean']:.1f}{spread}"


def difference_cell(row: Plain) -> str:
    """Difference from the first row in points, marked where it is within noise."""
    difference = f"{100 * row['difference']:+.1f}"
    if row["resolved"] is None:
        return f"{difference} (one seed)"
    return difference if row["resolved"] else f"{difference} (*within noise*)"


def noise_line(deviation: float) -> str:
    """Expected noise of a table, before it is run."""
    smallest = 100 * resolvable(deviation, 1, 1)
    return (
        f"with one seed per row, differences below {smallest:.1f} points are within noise (95 %), with two seeds below "
        f"{smallest / 2**0.5:.1f}, assuming a standard deviation of {100 * deviation:g} points between seeds"
    )


def resolution_line(deviation: float | None, degrees: int) -> str:
    """Measured noise of a table; empty if no row has several seeds."""
    if deviation is None:
        return ""
    return (
        f"\nStandard deviation between seeds: {100 * deviation:.2f} points ({degrees} degrees of freedom). With one "
        f"seed per row, differences below {100 * resolvable(deviation, 1, 1, degrees):.1f} points are within noise "
        "(95 %)."
    )


def summarise(outcomes: Sequence[Outcome], metric: str = "top1") -> dict[str, Plain]:
    """Mean and standard deviation of each row over its seeds, and its difference from the first row.

    `resolvable`: smallest significant difference (95 %), from the deviation pooled over rows with several seeds.
    `paired`: mean difference over seeds that both rows have and its smallest significant value, for two or more seeds.
    """
    rows: dict[str, dict[int, float]] = {}
    for outcome in outcomes:
        rows.setdefault(outcome.trial.row, {})[outcome.trial.seed] = outcome.metrics[metric]
    deviation, degrees = pooled_deviation([list(values.values()) for values in rows.values()])
    first = next(iter(rows.values()), {})
    table: dict[str, Plain] = {}
    for name, values in rows.items():
        numbers = list(values.values())
        smallest = resolvable(deviation, len(numbers), len(first), degrees) if degrees else None
        difference = mean(numbers) - mean(first.values())
        shared = sorted(values.keys() & first.keys())
        paired = paired_difference([values[s] for s in shared], [first[s] for s in shared]) if len(shared) > 1 else None
        table[name] = {
            "seeds": list(values),
            metric: numbers,
            "mean": mean(numbers),
            "deviation": stdev(numbers) if len(numbers) > 1 else None,
            "difference": difference,
            "resolvable": smallest,
            "resolved": None if smallest is None else abs(difference) > smallest,
            "paired": paired,
        }
    return table
