"""Settings to objects: data, model and objective, each checked against the others."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from shlex import quote

import numpy as np
import torch
from torch import nn

from tilework.augment import Augment, TwoViews, WholeCrop, output_shape
from tilework.augment.two_views import COLUMN, OtherView
from tilework.core.artefact import declared, given
from tilework.core.batch import Shape
from tilework.core.codebook import Codebook, same_codes
from tilework.core.errors import ConfigError, InputError
from tilework.core.location import Location, Url, is_store
from tilework.data import Chosen, ImageFolder, ImageSource, RandomCrops, Source, TokenSource, WholeImages
from tilework.data.columns import ColumnValues, column_kinds
from tilework.data.detected import ObjectFolder, ObjectSource, has_boxes
from tilework.data.image_files import Frame
from tilework.data.image_folder import Level
from tilework.data.images import fits_memory
from tilework.data.masked import PairSource, has_masks
from tilework.data.open_images import is_pattern, open_images, take_images
from tilework.data.overlap import shared_images
from tilework.data.pairs import PairFolder
from tilework.data.source import shape_of
from tilework.data.streamed_images import Streamed, StreamedImages
from tilework.models import Network
from tilework.models.without_memory import TooLarge, without_memory
from tilework.objectives import Combined, Objective, ObjectiveConfig
from tilework.runs.directory import DataSpec
from tilework.runs.run import Draw, Run
from tilework.store import Store
from tilework.train.log import Bar, counted, notice

TOKENIZER = ("name", "sha256", "encoder", "form")  # what a run keeps of the tokenizer that its store names


def check_there(path: Location) -> None:
    """Refuse a path where there is nothing; what is behind a URL is seen when it is opened."""
    if isinstance(path, Path) and not path.exists() and not is_pattern(path):
        raise InputError(f"no such data: {path}", "give a token store or a folder of images")


def open_source(
    path: Location,
    size: tuple[int, int],
    max_broken: float,
    classes: tuple[str, ...] | None = None,
    quiet: bool = False,
    samples: int = 0,
    crop: WholeCrop | None = None,
    level: Level = "leaf",
    draw: Draw | None = None,
    frame: Frame = "cover",
    held: bool = False,
) -> TokenSource | ImageSource:
    """A token store, images with masks or boxes, or a folder of images, whichever is there.

    samples: of the images, drawn at random; 0: all. crop: what training will cut from the whole images; None: images
    at their size are enough. frame: how they fill it. held: those that are held back, not those drawn.
    """
    check_there(path)
    if isinstance(path, Url) or is_store(path):
        return TokenSource(Store(path), classes)
    bar: list[Bar] = []

    def progress(done: int, total: int) -> None:
        if not bar:
            bar.append(Bar(f"read {path.name}", total, quiet=quiet))
        bar[0].update(done)

    try:
        folder = open_images(path, None, classes, level)
        for note in getattr(folder, "notes", ()):
            notice(note, quiet)
        drawn = draw or Draw()
        pick = drawn.held_numbers if held else drawn.numbers
        numbers = pick(folder.labels, len(folder.classes), samples)
        chosen = take_images(folder, numbers) if samples else folder
        dense = chosen if isinstance(chosen, PairFolder | ObjectFolder) else None
        if crop is not None and (frame != "cover" or dense is not None):
            what = "'whole_crop' cuts from the middle of images that have class labels"
            raise ConfigError(what, "use 'scale_crop' for masks and boxes, or set frame=cover")
        kept = size if crop is None else (2 * crop.size[0], 2 * crop.size[1])
        if not isinstance(chosen, ImageFolder) or (dense is None and not fits_memory(len(chosen), kept)):
            return StreamedImages.open(chosen, size, max_broken, frame, str(path))
        if crop is not None:
            return WholeImages.scan(chosen, size, crop.size, max_broken, progress)
        if isinstance(chosen, PairFolder):
            return PairSource.scan(chosen, size, frame, max_broken, progress)
        if isinstance(chosen, ObjectFolder):
            return ObjectSource.scan(chosen, size, frame, max_broken, progress)
        return ImageSource.read(chosen, size, max_broken, progress, frame)
    finally:
        for one in bar:
            one.close()


def find_columns(run: Run, data: Location) -> dict[str, ColumnValues]:
    """The columns that the objectives of a run need; refuses data that lack one, before anything is read."""
    needed = {name: column_kinds[name] for objective in run.objectives for name in objective.task.columns}
    taken = {kind.artefact for kind in needed.values()}
    for name in column_kinds:
        kind = column_kinds[name].artefact
        if kind not in taken and kind in declared(run) and given(run, kind):
            raise ConfigError(f"no objective of this recipe takes --{kind}", f"leave --{kind} out")
    if isinstance(data, Path) and not data.exists():
        return {}  # refused when it is opened
    return {name: kind.find(data, given(run, kind.artefact)) for name, kind in needed.items()}


def split_crop(run: Run) -> tuple[WholeCrop | None, tuple[Augment, ...]]:
    """The crop that is cut while images are decoded, if the run begins with one, and the steps that are left."""
    crop: WholeCrop | None = None
    steps, twice = run.augment, run.augment[0] if run.augment else None
    if steps and isinstance(steps[0], WholeCrop):
        crop, steps = steps[0], steps[1:]
    elif isinstance(twice, TwoViews) and twice.views and isinstance(twice.views[0], WholeCrop):
        crop = twice.views[0]
        if twice.second and twice.second[0] != crop:
            raise ConfigError("the views of 'two_views' are cropped in two ways", "start both lists with one crop")
        steps = (TwoViews(twice.views[1:], twice.second[1:] if twice.second else twice.views[1:]), *steps[1:])
    nested = [(*step.views, *step.second) if isinstance(step, TwoViews) else (step,) for step in steps]
    if any(isinstance(step, WholeCrop) for part in nested for step in part):
        raise ConfigError("'whole_crop' is not the first augmentation", "put it first, or use 'random_resized_crop'")
    return crop, steps


def training_source(run: Run, source: TokenSource | ImageSource, columns: dict[str, ColumnValues], name: str) -> Source:
    """The samples that a run is trained on, with their columns."""
    anew = isinstance(source, WholeImages | StreamedImages)  # pixels are drawn for every epoch, columns lie beside them
    whole: Source = ImageSource.blank(source.folder, (1, 1)) if anew and isinstance(source, ImageSource) else source
    for values in columns.values():
        whole = values.attach(whole, name)
    if columns:
        whole.batch(np.arange(1))  # a damaged column is refused before the first step
    crop, _ = split_crop(run)
    second = (COLUMN, OtherView) if crop is not None and isinstance(run.augment[0], TwoViews) else None
    if isinstance(source, StreamedImages):
        return Streamed(source, whole, None if crop is None else (crop.size, crop.area, crop.aspect), second)
    if crop is not None and isinstance(source, WholeImages):
        return RandomCrops(source, whole, crop.size, crop.area, crop.aspect, second)
    return chosen(whole, run) if isinstance(source, TokenSource) else whole


def chosen(source: Source, run: Run) -> Source:
    """The samples of the whole data that a run draws."""
    if not run.samples:
        return source
    return Chosen(source, run.draw.numbers(source.labels, len(source.classes), run.samples))


def held_source(run: Run, data: Location, classes: tuple[str, ...]) -> Source | None:
    """The training samples that a run holds back, with the columns that evaluation needs; None: it holds none."""
    if not run.draw.held:
        return None
    source = open_source(
        data, run.size, run.max_broken, classes, True, run.samples, None, run.classes, run.draw, run.frame, held=True
    )
    whole = with_columns(run, source, data)
    if not isinstance(source, TokenSource):
        return whole  # the others were never read
    return Chosen(whole, run.draw.held_numbers(source.labels, len(classes), run.samples))


def validation_source(run: Run, data: Location, classes: tuple[str, ...], quiet: bool) -> Source:
    """The samples that a run is evaluated on, with the columns that evaluation needs; a store keeps its own."""
    source = open_source(data, run.size, run.max_broken, classes, quiet, level=run.classes, frame=run.frame)
    return with_columns(run, source, data)


def with_columns(run: Run, source: Source, data: Location) -> Source:
    """Data with the columns that evaluation needs."""
    for name in run.objective.task.validation_columns:
        source = column_kinds[name].find(data, "").attach(source, str(data))
    return source


def data_spec(source: Source, shape: Shape) -> DataSpec:
    """What a run expects of its data. shape: of samples after the evaluation pipeline."""
    if shape.stage in ("ids", "stacks"):
        raise ConfigError("the evaluation pipeline ends in codes", "add 'embed' to run.evaluation")
    digest = "" if source.codebook is None else source.codebook.digest
    store = store_of(source)
    return DataSpec(
        source.stage,
        shape.channels,
        shape.grid,
        source.classes,
        digest,
        source.grid,
        "cover" if store is None else store.manifest.frame,
        {} if store is None else {k: v for k, v in store.manifest.tokenizer.items() if k in TOKENIZER},
        "" if store is None else store.manifest.licence,
    )


def store_of(source: Source) -> Store | None:
    """The token store that samples come from, whatever lies around it."""
    while not isinstance(source, TokenSource):
        if not hasattr(source, "source"):
            return None
        source = source.source
    return source.store


def _check_size(run: Run, spec: DataSpec) -> None:
    """Refuse a network whose weights alone fill this machine's memory, before any of it is taken."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1 << 40
    try:
        with without_memory(memory // 4):
            run.model.build(spec.channels, spec.grid, run.objective.task.outputs(len(spec.classes)))
    except TooLarge as error:
        what = f"the weights of this network do not fit the {memory / 1e9:.0f} GB of this machine"
        raise ConfigError(what, "lower its width, depth or number of entities") from error
    except (RuntimeError, NotImplementedError):
        pass  # a network that cannot be built by its shapes alone


def build_model(run: Run, spec: DataSpec) -> Network:
    """The network of a run, freshly initialised from its seed."""
    _check_size(run, spec)
    torch.manual_seed(run.fit.seed)
    return run.model.build(spec.channels, spec.grid, run.objective.task.outputs(len(spec.classes)))


def build_objective(run: Run, model: nn.Module, codebook: Codebook | None = None) -> Objective:
    """The objective with its auxiliary ones. codebook: of token stores; None for pixels."""
    main = run.objective.build(model, codebook)
    if not run.extra:
        return main
    names = [ObjectiveConfig.choices.name_of(type(extra.objective)) for extra in run.extra]
    if any(one.preprocess() for one in run.objectives):
        raise ConfigError("an objective that takes codes stands alone", "leave run.extra empty")
    built = [(extra.weight, extra.objective.build(model, codebook)) for extra in run.extra]
    parts = dict(zip(names, built, strict=True))
    return Combined(main, parts)


def check_data(
    run: Run, source: Source, validation: Source | None, data: Location, val: Location | None
) -> tuple[DataSpec, Network]:
    """Refuse data that do not fit a run or each other; returns what the data are like and a fresh network."""
    count, shape, preprocess = len(source), shape_of(source), run.objective.preprocess()
    run.objective.check(source.classes, run.fit.total_steps(count))
    if run.objective.task.labels and has_masks(source):
        what = f"the recipe learns labels of images, {data} has masks"
        raise ConfigError(what, "use a segmentation recipe such as seg_cpu")
    if run.objective.task.labels and has_boxes(source):
        what = f"the recipe learns labels of images, {data} has boxes"
        raise ConfigError(what, "use a detection recipe such as detect_cpu")
    fits = _check_kind(run, shape, data)
    if fits and source.stage != "pixels" and run.codes not in (None, source.grid):
        made, found = (f"{grid[0]}x{grid[1]}" for grid in (run.codes, source.grid))
        raise ConfigError(
            f"the recipe is made for {made} codes, {data} has {found}",
            "use a recipe that fits (linear_cpu takes any codes), or set codes=null and change the crops",
        )
    if validation is not None and (validation.stage, validation.grid) != (source.stage, source.grid):
        raise InputError(f"{val} is not of the same kind as {data}", "use two stores, or two folders, alike")
    if validation is not None and not same_codes(source.codebook, validation.codebook):
        raise InputError(f"{val} has another codebook than {data}", f"tokenize it like that one: --like {data}")
    trained, evaluated = (output_shape((*part, *preprocess), shape) for part in (run.augment, run.evaluation))
    spec = data_spec(source, evaluated)
    model = build_model(run, spec)
    for end in (trained, evaluated):
        if end.stage != model.takes:
            what = f"the augmentations end in {end.stage} but the model takes {model.takes}"
            raise ConfigError(what, "add 'embed' or change stem")
    if (trained.channels, trained.grid) != (evaluated.channels, evaluated.grid):
        found, wanted = (f"{s.channels} channels on {s.grid[0]}x{s.grid[1]}" for s in (trained, evaluated))
        raise ConfigError(f"training ends in {found}, evaluation in {wanted}", "change the crops of both")
    if run.fit.ema and run.objective.learns_table:
        raise ConfigError("learnt code vectors are not averaged with the weights", "set fit.ema=0")
    if count < max(2, run.fit.batch):
        raise ConfigError(f"a batch cannot be filled by {counted(count, 'sample')}", "give more")
    return spec, model


def with_batch(run: Run, samples: int, processes: int = 1, quiet: bool = True) -> Run:
    """The same run with the largest batch that so many samples fill, where they do not fill its own."""
    unit = processes * run.fit.accumulate
    batch = min(run.fit.batch, max(1, samples // unit) * unit)
    if batch == run.fit.batch:
        return run
    notice(f"{counted(samples, 'sample')}: the batch is {batch}, not {run.fit.batch}", quiet)
    return replace(run, fit=replace(run.fit, batch=batch))


def remark(
    source: Source, validation: Source | None, data: Location, val: Location | None, quiet: bool, part: bool = False
) -> None:
    """Say what is odd about a pair of data sets, but not wrong. part: only some of the training data are used."""
    if validation is None:
        return
    if len(validation) > len(source) and not part:
        counts = f"{counted(len(validation), 'sample')}, training on {data} {len(source):,}"
        notice(f"validation on {val} has {counts}: are --data and --val the right way round?", quiet)
    there = np.unique(validation.labels)
    if absent := [name for i, name in enumerate(source.classes) if i not in set(there.tolist())]:
        few = ", ".join(absent[:3]) + (", ..." if len(absent) > 3 else "")
        notice(f"{val} has no image of {len(absent)} of {len(source.classes)} classes ({few})", quiet)
    shared, looked = (0, 0) if quiet else shared_images(source, validation)
    if shared:
        what = f"{shared:,} of {counted(looked, 'validation image')} looked at are in the training data too"
        notice(f"{what}: accuracy on them says little", quiet)


def _check_kind(run: Run, shape: Shape, data: Location) -> bool:
    """Refuse images for a recipe for tokens, and the reverse; returns whether its first step fits the data."""
    stages = next((step.stages for step in (*run.augment, *run.evaluation)), (shape.stage,))
    if shape.stage == "pixels" and "pixels" not in stages and "ids" in stages:
        raise ConfigError(
            f"the recipe trains on a token store, but {data} is an image folder",
            "use one of 'tilework recipes --input pixels', or make a store first: "
            f"tilework tokenize {quote(str(data))} --out train.tok",
        )
    if shape.stage != "pixels" and stages == ("pixels",):
        raise ConfigError(
            f"the recipe trains on images, but {data} is a token store",
            "give a folder of images, or use one of 'tilework recipes --input tokens'",
        )
    return shape.stage in stages and not shape.is_sequence
