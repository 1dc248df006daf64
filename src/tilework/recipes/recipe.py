"""What a recipe is: a run or a chain as data, with its paper, row, published and measured figures; and their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tilework.augment import Augment, CentreCrop, TokenAdapt, TokenGeometry
from tilework.core.errors import ConfigError
from tilework.core.registry import Registry
from tilework.models import ModelConfig
from tilework.objectives import AdaptConfig, ReconstructConfig
from tilework.recipes.small import Input, input_of, small
from tilework.runs.run import Chain, Link, Run
from tilework.tokenizers import DecodeEncode

NETWORKS = {
    "vit": "small ViT",
    "swin": "small Swin",
    "resnet": "small ResNet",
    "token_adapt": "small",
    "upernet": "small UPerNet",
    "retinanet": "small RetinaNet",
    "mask_rcnn": "small Mask R-CNN",
    "cascade_mask_rcnn": "small Cascade Mask R-CNN",
}


@dataclass(frozen=True)
class Measured:
    """Our figures, and the section of docs/results.md that has them, with their command: data, steps, seeds."""

    section: str
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """A run or a chain of them, and what is known about it; what follows from the run is worked out from it."""

    name: str
    method: str
    network: str
    run: Run | Chain
    paper: str = ""  # "": our own
    row: str = ""  # table and row of the paper
    published: Mapping[str, float] = field(default_factory=dict)  # top1 in per cent, on ImageNet-1k unless named
    measured: Measured | None = None
    note: str = ""  # other rows by settings, and what the paper leaves open
    start: bool = False  # whether it begins with the weights of another run
    size: Literal["cpu", "full"] = "full"
    also: tuple[str, ...] = ()  # other names

    def __call__(self) -> Run | Chain:
        """The configuration, as in `tilework.recipes.demo_token()`."""
        return self.run

    @property
    def runs(self) -> tuple[Run, ...]:
        """The run, or those of the chain."""
        return tuple(link.run for link in self.run.links) if isinstance(self.run, Chain) else (self.run,)

    @property
    def about(self) -> str:
        """One line: the method, where the paper has it, the network, its input."""
        where = " ".join(filter(None, (self.paper, self.row)))
        inputs = " then ".join(dict.fromkeys(map(_input, self.runs)))
        return ", ".join(filter(None, (f"{self.method} ({where})" if where else self.method, self.network, inputs)))

    @property
    def takes(self) -> Input:
        """Its data, or those of a chain's first link."""
        return input_of(self.runs[0])

    @property
    def needs(self) -> tuple[str, ...]:
        """What it needs beside data."""
        parts = [part for run in self.runs for part in (run.objective, *run.augment)]
        columns = {column for run in self.runs for one in run.objectives for column in one.task.columns}
        known = {
            "start": self.start,
            "tokenizer": any(isinstance(part, AdaptConfig | DecodeEncode) for part in parts),
            "adapter": any(isinstance(part, TokenAdapt | TokenGeometry) for part in parts),
            "label maps": "label_map" in columns,
            "masks": "mask" in columns,
            "boxes": "boxes" in columns,
            "outlines": "instances" in columns,
        }
        return tuple(name for name, needed in known.items() if needed)

    @property
    def command(self) -> str:
        """The line that runs it."""
        if isinstance(self.runs[0].objective, ReconstructConfig):
            return f"tilework tokenizer train IMAGES/train --recipe {self.name} --val IMAGES/val --out TOKENIZER"
        flags = {"start": "--start RUN", "tokenizer": "--tokenizer TOKENIZER", "adapter": "--adapter ADAPTER"}
        flags |= {"label maps": "--maps MAPS"} if self.takes == "pixels" else {}  # stores keep their own
        images = (
            ("TRAIN.json", "VAL.json") if {"boxes", "outlines"} & set(self.needs) else ("IMAGES/train", "IMAGES/val")
        )
        data = ["STORE" if input_of(run) == "tokens" else images[0] for run in self.runs]
        val = ["none"] * (len(data) - 1) + ["STORE" if input_of(self.runs[-1]) == "tokens" else images[1]]
        needed = [flags[need] for need in self.needs if need in flags]
        words = ["tilework train", self.name, *needed, "--data", *data, "--val", *val, "--out OUT"]
        return " ".join(words)

    def card(self) -> dict[str, Any]:
        """Everything but the run, as plain values."""
        return {
            "name": self.name,
            "also": list(self.also),
            "about": self.about,
            "method": self.method,
            "network": self.network,
            "paper": self.paper,
            "row": self.row,
            "published": dict(self.published),
            "measured": None if self.measured is None else {**self.measured.figures, "section": self.measured.section},
            "takes": self.takes,
            "size": self.size,
            "needs": list(self.needs),
            "small": small_forms[self.name].name if self.name in small_forms else None,
            "note": self.note,
            "command": self.command,
        }


recipes: Registry[Recipe] = Registry("recipe")
catalogue: list[Recipe] = []  # in the order of the papers' tables
small_forms: dict[str, Recipe] = {}  # by the names of the full-size recipes


def add(
    paper: str,
    name: str,
    method: str,
    network: str,
    run: Run | Chain,
    row: str = "",
    published: Mapping[str, float] | None = None,
    *,
    measured: Measured | None = None,
    note: str = "",
    start: bool = False,
    size: Literal["cpu", "full"] = "full",
    also: tuple[str, ...] = (),
) -> Recipe:
    """File a recipe under its names."""
    return _file(Recipe(name, method, network, run, paper, row, published or {}, measured, note, start, size, also))


def add_small(
    full: Recipe,
    name: str = "",
    *settings: str,
    run: Run | Chain | None = None,
    without: tuple[type[Augment], ...] = (),
    mixed: float = 1.0,
    standardise: bool = True,
    method: str = "",
    measured: Measured | None = None,
    note: str = "",
    also: tuple[str, ...] = (),
) -> Recipe:
    """File the small form of a recipe, made as `small()` says or given; listed where it has a name."""
    form = run or small(run_in(full), *settings, without=without, mixed=mixed, standardise=standardise)
    last = form.links[-1].run if isinstance(form, Chain) else form
    network = NETWORKS[ModelConfig.choices.name_of(type(last.model))]
    recipe = Recipe(
        name or f"{full.name}_cpu",
        method or full.method,
        network,
        form,
        full.paper,
        full.row,
        measured=measured,
        note=note,
        start=full.start,
        size="cpu",
        also=also,
    )
    small_forms[full.name] = recipe
    return _file(recipe) if name else recipe


def _file(recipe: Recipe) -> Recipe:
    for name in (recipe.name, *recipe.also):
        recipes.add(name)(recipe)
    catalogue.append(recipe)
    return recipe


def linked(**links: Recipe) -> Chain:
    """A chain of recipes by the names of its links."""
    return Chain(tuple(Link(name, run_in(recipe)) for name, recipe in links.items()))


def run_in(recipe: Recipe) -> Run:
    """The run of a recipe that is no chain."""
    if isinstance(recipe.run, Chain):
        raise ConfigError(f"'{recipe.name}' is a chain of runs", "choose a recipe of one run")
    return recipe.run


def run_of(name: str) -> Run:
    """The run of a recipe by its name."""
    return run_in(find(name))


def find(name: str, small: bool = False) -> Recipe:
    """A recipe by its name; NAME_cpu is the small form of NAME, as is `small`."""
    base = name.removesuffix("_cpu")
    if name not in list(recipes) and base != name and base in list(recipes):
        name, small = base, True
    recipe = recipes[name]
    if not small:
        return recipe
    if recipe.size == "cpu":
        raise ConfigError(f"recipe '{name}' is small already", "leave --small out")
    if recipe.name not in small_forms:
        raise ConfigError(f"recipe '{name}' has no small form", "leave --small out")
    return small_forms[recipe.name]


def _input(run: Run) -> str:
    if input_of(run) == "tokens":
        return f"{run.codes[0]}x{run.codes[1]} tokens" if run.codes else "tokens"
    crops = [step.size for step in run.evaluation if isinstance(step, CentreCrop)]
    return f"{(crops or [run.size])[0][0]} px"
