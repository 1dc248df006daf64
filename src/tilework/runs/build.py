"""Configuration to objects: sources, model and objective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tilework.augment import Augment, apply_all, check_chain, check_places
from tilework.core.batch import Stage
from tilework.core.errors import ConfigError, InputError
from tilework.core.place import Place, Url
from tilework.core.rng import Draws
from tilework.data import ImageFolder, ImageSource, Source, TokenSource
from tilework.data.part import part_of
from tilework.objectives import Combined, Objective, ObjectiveConfig
from tilework.runs.codes import digest
from tilework.runs.run import Run
from tilework.store import Store
from tilework.train.log import Bar


@dataclass(frozen=True)
class DataSpec:
    """What a trained model expects of its data."""

    stage: str
    channels: int
    grid: tuple[int, int]  # after the evaluation pipeline
    classes: tuple[str, ...]
    codebook: str  # SHA-256 of the code vectors; empty for pixels
    stored: tuple[int, int] | None = None  # grid before the evaluation pipeline


def check_there(path: Place) -> None:
    """Refuse a path where there is nothing; what is behind a URL is seen when it is opened."""
    if isinstance(path, Path) and not path.exists():
        raise InputError(f"no such data: {path}", "give a token store or a folder of images")


def is_store(path: Place) -> bool:
    """Whether a path or URL is meant as a token store rather than as a folder of images."""
    return isinstance(path, Url) or (path / "manifest.json").exists() or path.suffix == ".tok"


def open_source(
    path: Place,
    size: tuple[int, int],
    max_broken: float,
    classes: tuple[str, ...] | None = None,
    quiet: bool = False,
    samples: int = 0,
) -> Source:
    """A token store or a folder of images, whichever is there. samples: of the images, drawn at random; 0: all."""
    check_there(path)
    if isinstance(path, Url) or is_store(path):
        return TokenSource(Store(path), classes)
    bar: list[Bar] = []

    def progress(done: int, total: int) -> None:
        if not bar:
            bar.append(Bar(f"read {path.name}", total, quiet=quiet))
        bar[0].update(done)

    try:
        folder = ImageFolder.open(path, classes)
        chosen = folder.take(part_of(len(folder), samples)) if samples else folder
        return ImageSource.read(chosen, size, max_broken, progress)
    finally:
        for one in bar:
            one.close()


def bind(
    augments: Sequence[Augment], source: Source, device: torch.device, table: Tensor | None = None
) -> tuple[Augment, ...]:
    """Augmentations with the codebook of their data, or learnt vectors in its place, on the device."""
    codebook, table = (None if t is None else t.to(device) for t in (source.codebook, table))
    return tuple(augment.bind(codebook, table) for augment in augments)


def data_spec(run: Run, source: Source, steps: Sequence[Augment] | None = None) -> DataSpec:
    """What the model gets after the evaluation pipeline, or after other steps, found by running it on one sample."""
    part = source.batch(np.arange(1))
    chosen = (*(run.evaluation if steps is None else steps), *run.objective.inlet())
    x = apply_all(bind(chosen, source, part.x.device), part, Draws(0, 0, part.index)).x
    if x.ndim != 4:
        raise ConfigError(f"the evaluation pipeline ends in {x.ndim - 1}-d samples", "add 'embed' to run.evaluation")
    grid = (x.shape[2], x.shape[3])
    return DataSpec(source.stage, x.shape[1], grid, source.classes, digest(source.codebook), source.grid)


def build_model(run: Run, spec: DataSpec) -> nn.Module:
    """The network of a run, freshly initialised from its seed."""
    torch.manual_seed(run.fit.seed)
    return run.model.build(spec.channels, spec.grid, run.objective.task.outputs(len(spec.classes)))


def build_objective(run: Run, model: nn.Module, codebook: Tensor | None = None) -> Objective:
    """The objective with its auxiliary ones. codebook: (K, C) of token stores."""
    main = run.objective.build(model, codebook)
    if not run.extra:
        return main
    names = [ObjectiveConfig.choices.name_of(type(extra.objective)) for extra in run.extra]
    if any(one.inlet() for one in (run.objective, *(extra.objective for extra in run.extra))):
        raise ConfigError("an objective that takes codes stands alone", "leave run.extra empty")
    built = [(extra.weight, extra.objective.build(model, codebook)) for extra in run.extra]
    parts = dict(zip(names, built, strict=True))
    return Combined(main, parts)


def check_data(
    run: Run, source: Source, judge: Source | None, data: Place, val: Place | None
) -> tuple[DataSpec, nn.Module]:
    """Refuse data that do not fit a run or each other; returns what the data are like and a fresh network."""
    run.objective.check(source.classes, run.fit.total_steps(len(source)))
    for chain in (run.augment, run.evaluation):
        check_chain(chain, source.stage)
    if source.stage == "ids" and source.grid[0] == 1:
        check_places((*run.augment, *run.evaluation), source.grid[1])
    if source.stage != "pixels" and run.codes not in (None, source.grid):
        made, found = (f"{grid[0]}x{grid[1]}" for grid in (run.codes, source.grid))
        raise ConfigError(
            f"the recipe is made for {made} codes, {data} has {found}",
            "use a recipe or tokenizer that fits, or set codes=null and change the crops",
        )
    if judge is not None and (judge.stage, judge.grid) != (source.stage, source.grid):
        raise InputError(f"{val} is not of the same kind as {data}", "use two stores, or two folders, alike")
    spec = data_spec(run, source)
    model = build_model(run, spec)
    for chain in (run.augment, run.evaluation):
        check_chain((*chain, *run.objective.inlet()), source.stage, _takes(model))
    if judge is not None and data_spec(run, judge).codebook != spec.codebook:
        raise InputError(f"{val} has another codebook than {data}", f"tokenize it like that one: --like {data}")
    trained = data_spec(run, source, run.augment)
    if (trained.channels, trained.grid) != (spec.channels, spec.grid):
        found, wanted = (f"{s.channels} channels on {s.grid[0]}x{s.grid[1]}" for s in (trained, spec))
        raise ConfigError(f"training ends in {found}, evaluation in {wanted}", "change the crops of both")
    if run.fit.ema and run.objective.learns_table:
        raise ConfigError("the vectors of codes are not averaged with the weights", "set fit.ema=0")
    if len(source) < run.fit.batch:
        raise ConfigError(f"{len(source)} samples do not fill a batch of {run.fit.batch}", "lower fit.batch")
    return spec, model


def _takes(model: nn.Module) -> Stage:
    takes: Stage | None = getattr(model, "takes", None)
    if takes is None:
        raise ConfigError(f"{type(model).__name__} does not say what it takes", "choose another model")
    return takes
