"""The protocol of converged tables: few images, many passes, paired seeds, a learning rate chosen for every row.

Rows of one seed share their training images, their order and their first weights. Images with one label are drawn
class by class, images with masks at random. With the first seed every row is
trained at each rate; the rate that does best on held-out training images is used for all seeds. Validation data are
never used to choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from statistics import mean

import numpy as np

from tilework.core.config import Plain
from tilework.core.errors import ConfigError
from tilework.runs import Chain, Draw, Run
from tilework.runs.directory import RunDirectory
from tilework.train import HELD, TRAINING
from tilework.train.fit import logged_name

REACHED = 0.95  # share of training labels that the first row has right when the table has converged
SET = {  # settings that the protocol sets, and what sets them
    "fit.optim.lr": "--rates",
    "fit.seed": "--seeds",
    "fit.epochs": "--passes",
    "fit.steps": "--passes",
    "samples": "--samples",
    "draw": "--samples, --held and --seeds",
    "fit.early_stop": "nothing: every row trains for all its passes",
    "fit.evaluate_every": "nothing: a run is evaluated five times",
}


@dataclass(frozen=True)
class Protocol:
    """How the rows of a converged table are trained."""

    samples: int = 1000  # training images, as many of each class where an image has one
    passes: int = 100  # over them; the rate falls to zero in that time
    rates: tuple[float, ...] = (5e-4, 1e-3, 2e-3)  # peak learning rates to choose from
    held: int = 2000  # training images that judge the rates: none of those trained on
    seeds: int = 3
    looks: int = 5  # evaluations of a run, for its curve

    def __post_init__(self) -> None:
        names = {f"{rate:g}" for rate in self.rates}  # of directories
        if len(names) < max(2, len(self.rates)) or not all(rate > 0 and isfinite(rate) for rate in self.rates):
            raise ConfigError(
                f"learning rates {self.rates} leave nothing to choose", "give --rates two or three different ones"
            )
        if min(self.samples, self.passes, self.held, self.seeds, self.looks) < 1:
            raise ConfigError("samples, passes, held, seeds and looks must be at least 1", "give larger ones")

    def draw(self, run: Run, seed: int) -> Draw:
        """Which training images a run draws and holds back."""
        return Draw(seed, balanced=run.objective.task.labels, held=self.held if seed == 0 else 0)

    def check(self, run: Run, labels: np.ndarray, classes: int) -> None:
        """Refuse data that cannot give such a subset and as many held images. labels: (N,) class numbers."""
        if self.samples + self.held > len(labels):
            what = f"--samples {self.samples} and --held {self.held} are more than the {len(labels)} training images"
            raise ConfigError(what, "lower one of them")
        if run.objective.task.labels:
            least, each = int(np.bincount(labels, minlength=classes).min()), self.samples // classes
            if not each or each > least:
                what = f"--samples {self.samples} of {classes} classes are {each} of each, and the smallest has {least}"
                raise ConfigError(what, f"give from {classes} to {least * classes}")
        self.draw(run, 0).held_numbers(labels, classes, self.samples)

    @staticmethod
    def refuse(row: str, settings: Iterable[str]) -> None:
        """Refuse settings of a row (key=value) that the protocol would set anew."""
        for key in (setting.partition("=")[0] for setting in settings):
            if name := next((one for one in SET if key == one or key.startswith(f"{one}.")), None):
                raise ConfigError(f"'{key}' of row '{row}' is set by the protocol", f"leave it out, use {SET[name]}")

    def run(self, run: Run | Chain, seed: int, rate: float) -> Run | Chain:
        """The run for a seed and a rate; of a chain, the last link, and the seed of the others."""
        if isinstance(run, Chain):
            *first, last = run.links
            seeded = [replace(link, run=replace(link.run, fit=replace(link.run.fit, seed=seed))) for link in first]
            return Chain((*seeded, replace(last, run=self._run(last.run, seed, rate))))
        return self._run(run, seed, rate)

    def _run(self, run: Run, seed: int, rate: float) -> Run:
        fit = replace(
            run.fit,
            seed=seed,
            epochs=self.passes,
            steps=0,
            evaluate_every=max(1, self.passes // self.looks),
            evaluate_training=True,
            early_stop=0,
            save_every=1000,
            keep=1,
            optim=replace(run.fit.optim, lr=rate),
        )
        draw = self.draw(run, seed)
        return replace(run, samples=self.samples, draw=draw, maps=run.maps.replace("{seed}", str(seed)), fit=fit)

    def best(self, held: Mapping[float, float], higher_is_better: bool) -> float:
        """The rate with the best figure on held images; the lower one of two that are equal."""
        sign = 1 if higher_is_better else -1
        return max(sorted(held), key=lambda rate: sign * held[rate])


def curve(path: Path, metric: str) -> list[Plain]:
    """Evaluations of a run: passes done, mean training loss since the one before, figures."""
    lines, found, losses = RunDirectory.find(path).log(), [], []
    names = {"validation": logged_name(metric), "training": TRAINING + metric, "held": HELD + metric}
    for line in lines:
        if "loss" in line:
            losses.append(line["loss"])
        if names["validation"] in line:
            figures = {kind: line[name] for kind, name in names.items() if name in line}
            found.append({"pass": line["epoch"], "loss": round(mean(losses), 5) if losses else None, **figures})
            losses = []
    return found


def plateau(points: Sequence[Plain], margin: float = 0.01) -> int | None:
    """The first evaluated pass from which the validation figure stays within `margin` of its last; None: no curve."""
    values = [point["validation"] for point in points]
    for i, point in enumerate(points):
        if all(abs(value - values[-1]) <= margin for value in values[i:]):
            return int(point["pass"])
    return None
