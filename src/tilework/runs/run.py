"""What a run is: its parts, each an independent choice; and a chain of runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar, final

import numpy as np

from tilework.augment import Augment
from tilework.core.artefact import artefact, declared, give
from tilework.core.bounds import check_shares, check_sizes
from tilework.core.errors import ConfigError
from tilework.core.location import PathOrHub
from tilework.data.columns import column_kinds
from tilework.data.image_files import Frame
from tilework.data.image_folder import Level
from tilework.data.part import balanced_part, held_part, part_of
from tilework.models import ModelConfig
from tilework.objectives import ObjectiveConfig
from tilework.train import FitConfig

R = TypeVar("R", "Run", "Chain")


@dataclass(frozen=True)
class Extra:
    """An auxiliary objective and its weight; gone when the model is exported."""

    objective: ObjectiveConfig
    weight: float = 1.0


@dataclass(frozen=True)
class Draw:
    """How a run draws its training samples, where `samples` is not all of them."""

    seed: int = 0
    balanced: bool = False  # the same number of each class, up to one
    held: int = 0  # of the other training samples: the run is evaluated on them too, figures held_*

    def numbers(self, labels: np.ndarray, classes: int, samples: int) -> np.ndarray:
        """Of the samples to train on, in order. labels: (N,) class numbers of all; samples: 0 for all."""
        if not samples:
            return np.arange(len(labels))
        if self.balanced:
            return balanced_part(labels, classes, samples, self.seed)
        return part_of(len(labels), samples, self.seed)

    def held_numbers(self, labels: np.ndarray, classes: int, samples: int) -> np.ndarray:
        """Of the samples that are held back."""
        return held_part(len(labels), self.numbers(labels, classes, samples), self.held, self.seed)


@final
@dataclass(frozen=True)
class Run:
    """A whole training run but for its data."""

    model: ModelConfig
    objective: ObjectiveConfig
    augment: tuple[Augment, ...]
    evaluation: tuple[Augment, ...]
    extra: tuple[Extra, ...] = ()
    size: tuple[int, int] = (96, 96)  # of images, in pixels
    frame: Frame = "cover"  # how images fill it: the middle, all of them squashed, or letterboxed
    codes: tuple[int, int] | None = None  # grid of the token stores it is made for; None: any that the crops fit
    classes: Level = "leaf"  # of nested class folders: those that hold images (leaf), or the first level (top)
    samples: int = 0  # of the training data, drawn at random; 0: all
    draw: Draw = field(default_factory=Draw)
    maps: str = artefact("maps")  # directory of label maps beside images, where an objective needs them
    max_broken: float = 0.05  # share of unreadable images above which a folder is refused
    fit: FitConfig = field(default_factory=FitConfig)

    def __post_init__(self) -> None:
        check_shares(self, "max_broken")
        check_sizes(self.model, "model")
        for name, steps in (("augment", self.augment), ("evaluation", self.evaluation)):
            check_sizes(steps, name, ("size", "grid"))
        if min(self.size) < 1:
            raise ValueError(f"size is {self.size}: sides must be at least 1")
        if self.samples < 0 or self.draw.held < 0:
            raise ValueError(f"samples={self.samples} and draw.held={self.draw.held} must not be negative")
        if self.draw.held and not self.samples:
            raise ValueError(f"draw.held={self.draw.held} needs samples, which leaves some to hold back")

    @property
    def objectives(self) -> tuple[ObjectiveConfig, ...]:
        """The main objective, those it is made of, and the auxiliary ones."""
        return (*self.objective.parts, *(extra.objective for extra in self.extra))

    @property
    def model_input(self) -> tuple[Augment, ...]:
        """Steps from a sample to what the model takes, when it is evaluated."""
        return (*self.evaluation, *self.objective.preprocess())


@dataclass(frozen=True)
class Link:
    """A run of a chain; its data are given on the command line."""

    name: str  # of its directory
    run: Run


@final
@dataclass(frozen=True)
class Chain:
    """Runs one after another, each from the weights of the one before; only the stem changes with the input."""

    links: tuple[Link, ...]

    def __post_init__(self) -> None:
        names = [link.name for link in self.links]
        if not names or len(set(names)) < len(names) or not all(n.isidentifier() for n in names):
            raise ValueError("the links of a chain need different names of letters and digits")


@dataclass(frozen=True)
class Artefacts:
    """Directories that recipes may need beside their data."""

    tokenizer: PathOrHub | None = None
    adapter: Path | None = None
    maps: Path | None = None

    @property
    def paths(self) -> dict[str, PathOrHub]:
        """Those that were given, by kind."""
        known = {"tokenizer": self.tokenizer, "adapter": self.adapter, "maps": self.maps}
        return {kind: path for kind, path in known.items() if path is not None}


def equip(run: R, artefacts: Artefacts, strict: bool = True) -> R:
    """The same run or chain with artefacts where its parts take them, and what follows from them.

    strict: refuse an artefact that no part takes.
    """
    paths, runs = artefacts.paths, [link.run for link in run.links] if isinstance(run, Chain) else [run]
    if strict and (strange := paths.keys() - set().union(*map(taken, runs) if paths else ())):
        raise ConfigError(f"no part of this recipe takes --{min(strange)}", f"leave --{min(strange)} out")
    if isinstance(run, Chain):
        return replace(run, links=tuple(replace(link, run=_equipped(link.run, paths)) for link in run.links))
    return _equipped(run, paths)


def taken(run: Run) -> set[str]:
    """Kinds of artefacts that a run takes: those its parts declare, of columns only those that an objective needs."""
    needed = {column_kinds[name].artefact for one in run.objectives for name in one.task.columns}
    return declared(run) - {column_kinds[name].artefact for name in column_kinds} | needed


def _equipped(run: Run, paths: Mapping[str, PathOrHub]) -> Run:
    kinds = taken(run) if paths else set()
    return suited(give(run, {kind: path for kind, path in paths.items() if kind in kinds}) if paths else run)


def suited(run: Run) -> Run:
    """The network and the size of images that the objective's artefacts ask for."""
    model, size = run.objective.suit(run.model, run.size)
    return replace(run, model=model, size=size)
