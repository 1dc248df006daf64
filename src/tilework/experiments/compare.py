"""Storage against accuracy on the user's images: the rows of SeiT's table B.5 and its figure 1.

Every row is written to disk and its bytes are counted; the same model is trained on it for the same number of steps and
evaluated on the same validation images. Rows are written KIND, KIND:VALUE or KIND:VALUE@SEEDS.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
from PIL import Image

from tilework.augment import Augment, output_shape
from tilework.core.batch import Shape, Stage
from tilework.core.config import Plain, resolve
from tilework.core.distributed import pick_device
from tilework.core.errors import ConfigError, DamageError
from tilework.core.files import (
    is_free,
    locked,
    make_directory,
    new_directory,
    remove_unfinished,
    write,
    write_json,
)
from tilework.core.registry import Registry, nearest
from tilework.core.sealed import read_json
from tilework.data import ImageFolder, ImageSource
from tilework.data.image_files import open_image, to_rgb
from tilework.data.images import decode_all
from tilework.data.split import make_class_folders
from tilework.experiments.runner import (
    Outcome,
    Trial,
    accuracy_cell,
    check_out,
    claim,
    difference_cell,
    noise_line,
    resolution_line,
    run_trial,
    summarise,
    with_seed,
)
from tilework.experiments.scores import read_scores, scored, write_scores
from tilework.experiments.statistics import pooled_deviation
from tilework.experiments.training_data import TrainingData
from tilework.recipes import run_of
from tilework.report import storage_accuracy
from tilework.runs import Artefacts, Chain, Link, Run, equip
from tilework.runs.build import open_source
from tilework.store import Store
from tilework.store.finish import is_finished
from tilework.store.rearrange import first_of_each, random_rank
from tilework.tokenizers import load_tokenizer
from tilework.tokenizers.image_codes import Tokenizing
from tilework.tokenizers.tokenize import tokenize
from tilework.train.log import Bar, counted, notice

RESULTS, TABLE, PLOT = "results.json", "table.md", "storage-accuracy.png"
RESIZED_QUALITY = 90  # of the JPEG files of the resolution rows


Storing: TypeAlias = "Callable[[Compare, str], Stored]"


@dataclass(frozen=True)
class Stored:
    """Data of a row on disk, and the run that trains on it."""

    run: Run | Chain
    data: tuple[Path, ...]
    val: tuple[Path | None, ...]
    bytes: int
    samples: int
    kept: str  # description of the data, for the table


@dataclass(frozen=True)
class Row:
    """A kind of row: `check` refuses an invalid value before anything is written, `store` writes the data."""

    check: Callable[[Compare, str], object]
    store: Callable[[Compare, str], Stored]


rows: Registry[Row] = Registry("row")


def row(name: str, check: Callable[[Compare, str], object]) -> Callable[[Storing], Storing]:
    """Decorator that registers the function that stores a kind of row."""

    def register(store: Storing) -> Storing:
        rows.add(name)(Row(check, store))
        return store

    return register


@dataclass
class Compare:
    """A comparison in its directory; finished rows are not repeated."""

    images: Path
    val: Path
    out: Path
    names: Sequence[str]
    tokenizers: Sequence[Path]
    settings: Sequence[str] = ()  # overrides for every run
    pixel_recipe: str = "plain_pixel_cpu"
    token_recipes: Sequence[str] = ("seit_cpu", "seit_f16_cpu")  # the first that fits the token grid is used
    plain_recipes: Sequence[str] = ("seit_plain_cpu",)
    deviation: float = 0.01  # assumed standard deviation of accuracy between seeds
    device: str = "auto"
    quiet: bool = False
    adapter: Path | None = None  # TokenAdapt, for token recipes that use one
    maps: Path | None = None  # label maps, for pixel recipes that learn from them
    _stored: dict[str, Stored] = field(default_factory=dict, init=False, repr=False)

    def plan(self) -> Plain:
        """Rows and runs, after all checks."""
        plan = self._check()
        return {
            "images": len(ImageFolder.open(self.images)),
            "rows": {name: seeds for name, (*_, seeds) in zip(self.names, plan, strict=True)},
            "runs": sum(seeds for *_, seeds in plan),
            "steps_per_run": steps_of(self.recipe(self.pixel_recipe)),
            "noise": noise_line(self.deviation),
        }

    def run(self) -> Plain:
        """All rows; returns what results.json holds."""
        plan = self._check()
        is_free(self.out)  # raises if it cannot be a directory
        make_directory(self.out)
        with locked(self.out):
            self._claim()
            return self._run(plan)

    def _run(self, plan: list[tuple[str, str, int]]) -> Plain:
        notice(f"{counted(sum(seeds for *_, seeds in plan), 'run')}; {noise_line(self.deviation)}", self.quiet)
        outcomes: list[Outcome] = []
        for kind, value, seeds in plan:
            name = f"{kind}:{value}" if value else kind
            stored = self._stored[name] = rows[kind].store(self, value)
            for seed in range(seeds):
                trial = Trial(name, seed, with_seed(stored.run, seed), stored.data, stored.val)
                outcomes.append(run_trial(trial, self.out, self.device, self.quiet))
                results = self._report(outcomes)
        return results

    def _check(self) -> list[tuple[str, str, int]]:
        """Check rows, folders and recipes before anything is written; returns rows as kind, value, seeds."""
        check_out(self.out, self.images, self.val)
        plan = [parse_row(name) for name in self.names]
        if not plan or len({(kind, value) for kind, value, _ in plan}) < len(plan):
            raise ConfigError("a row is given twice, or there are no rows", "give each once; add @SEEDS for more seeds")
        classes = ImageFolder.open(self.images).classes
        ImageFolder.open(self.val, classes)  # some may be missing, others not be there
        for path in self.tokenizers:
            load_tokenizer(path)
        for kind, value, _ in plan:
            rows[kind].check(self, value)
        self._check_input(self.pixel_recipe, "pixels", "pixels")
        for recipe in (*self.token_recipes, *self.plain_recipes):
            self._check_input(recipe, "ids", "map")
        batch, counts = self.recipe(self.pixel_recipe).fit.batch, np.bincount(ImageFolder.open(self.images).labels)
        for name, (kind, value, _) in zip(self.names, plan, strict=True):
            share = _share(self, value) if kind in ("uniform", "score") else 1.0
            if sum(max(1, round(share * n)) for n in counts.tolist() if n) < batch:
                raise ConfigError(f"row '{name}' has fewer images than a batch ({batch})", "lower fit.batch")
        return plan

    def _check_input(self, recipe: str, start: Stage, end: Stage) -> None:
        """Refuse a recipe for another kind of input."""
        run = self.recipe(recipe)
        if output_shape(run.augment, Shape(start, 3, run.codes or run.size)).stage != end:
            data = "images" if start == "pixels" else "token stores"
            raise ConfigError(f"recipe '{recipe}' does not train on {data}", f"choose one for {data}")

    def _claim(self) -> None:
        state = {
            "images": str(self.images),
            "val": str(self.val),
            "tokenizers": [load_tokenizer(path)[1].sha256 for path in self.tokenizers],
            "settings": list(self.settings),
            **{name: str(path) for name, path in (("adapter", self.adapter), ("maps", self.maps)) if path is not None},
            "samples": TrainingData.fingerprints(self.images, self.val),
            "recipes": [self.pixel_recipe, list(self.token_recipes), list(self.plain_recipes)],
        }
        claim(self.out, state, "comparison")
        for folder in (self.out, self.out / "data"):
            remove_unfinished(folder)

    # data of the rows

    @cached_property
    def folder(self) -> ImageFolder:
        """The readable training images."""
        source = open_source(self.images, self.recipe(self.pixel_recipe).size, 0.05, quiet=self.quiet)
        assert isinstance(source, ImageSource)
        assert isinstance(source.folder, ImageFolder)  # tar and Parquet files are refused before
        return source.folder

    def recipe(self, name: str) -> Run:
        """A recipe with the overrides of the comparison."""
        given = Artefacts(next(iter(self.tokenizers), None), self.adapter, self.maps)
        return resolve(equip(run_of(name), given, strict=False), None, self.settings)

    def folder_row(self, kept: str, path: Path, folder: ImageFolder) -> Stored:
        """A row of images in a folder, with the pixel recipe."""
        return Stored(self.recipe(self.pixel_recipe), (path,), (self.val,), folder.bytes, len(folder), kept)

    def copied(self, name: str, index: np.ndarray) -> ImageFolder:
        """A new folder of some training images."""
        return self._new_folder(name, ((i, self.folder.paths[i].read_bytes()) for i in index.tolist()))

    def coded(self, name: str, code: Callable[[Image.Image], Image.Image], quality: int) -> ImageFolder:
        """A new folder of all training images that can be read, changed and written as JPEG."""

        def encode(path: Path) -> bytes:
            data = io.BytesIO()
            with open_image(path) as image:
                code(to_rgb(image)).save(data, "JPEG", quality=quality)
            return data.getvalue()

        def progress(done: int, total: int) -> None:
            bar.update(done)

        bar = Bar(f"write {name}", len(self.folder), quiet=self.quiet)
        found = self._new_folder(name, decode_all(self.folder, encode, [], Run.max_broken, progress))
        bar.close()
        return found

    def _new_folder(self, name: str, files: Iterable[tuple[int, bytes]]) -> ImageFolder:
        """files: number and content of each image."""
        path = self.out / "data" / name
        if not path.exists():
            with new_directory(path) as root:
                make_class_folders(root, self.folder.classes)
                for i, data in files:
                    (root / self.folder.classes[int(self.folder.labels[i])] / f"{i:08d}.jpg").write_bytes(data)
        return ImageFolder.open(path, self.folder.classes)

    def store(self, number: int, views: int = 1) -> tuple[Path, Path]:
        """Token stores of training and validation images, by the number of the tokenizer."""
        path = self.tokenizers[number - 1]
        tokenizer, card = load_tokenizer(path)
        device = pick_device(self.device)
        train = self.out / "data" / f"train-{number}{f'-views-{views}' if views > 1 else ''}.tok"
        val = self.out / "data" / f"val-{number}{f'-views-{views}' if views > 1 else ''}.tok"
        for path, root, many in ((train, self.images, views), (val, self.val, 1)):
            if not is_finished(path):
                folder = ImageFolder.open(root, ImageFolder.open(self.images).classes)
                used = None if path == train else Store(train).used
                bar = Bar(f"tokenize {path.name}", len(folder), quiet=self.quiet)
                tokenize(folder, Tokenizing(tokenizer, card, device, views=many), path, used=used, progress=bar.update)
                bar.close()
        return train, val

    def token_row(self, names: Sequence[str], number: int, views: int = 1) -> Stored:
        """A row of tokens, with the recipe that fits their grid."""
        train, val = self.store(number, views)
        store = Store(train)
        run = self.fitting(names, (store.grid[0], store.grid[1]))
        crops = f", {views} crops of each image" if views > 1 else ""
        name, codec = self.tokenizers[number - 1].name, store.manifest.codec
        kept = f"{store.grid[0]}x{store.grid[1]} codes of {name} ({codec}){crops}"
        return Stored(run, (train,), (val,), sum(store.sizes.values()), len(store) * store.views, kept)

    def fitting(self, names: Sequence[str], grid: tuple[int, int]) -> Run:
        """The first of some recipes that fits a token grid."""
        for name in names:
            if (run := self.recipe(name)).codes in (None, grid):
                return run
        what = f"no recipe of {', '.join(names)} takes {grid[0]}x{grid[1]} codes"
        raise ConfigError(what, "use another tokenizer or another --token-recipe")

    def _report(self, outcomes: list[Outcome]) -> Plain:
        earlier = self._earlier()
        outcomes = [*outcomes, *(one for row in earlier.values() for one in _outcomes_of(row))]
        summary = summarise(outcomes)
        deviation, degrees = pooled_deviation([row["top1"] for row in summary.values()])
        table = []
        for name, row in summary.items():
            seconds = [round(outcome.seconds, 1) for outcome in outcomes if outcome.trial.row == name]
            told = self._told(self._stored[name]) if name in self._stored else earlier[name]
            table.append({**told, "row": name, **row, "seconds": seconds})
        results = {
            "images": {"train": len(self.folder), "val": len(ImageFolder.open(self.val))},
            "classes": len(self.folder.classes),
            "assumed_deviation": self.deviation,
            "deviation": deviation if degrees else None,
            "degrees_of_freedom": degrees,
            "rows": table,
        }
        write_json(self.out / RESULTS, results)
        write(self.out / TABLE, markdown(results).encode())
        points = [(r["row"], r["bytes"], r["mean"], r["deviation"] or 0.0) for r in table]
        write(self.out / PLOT, storage_accuracy(points))
        return results

    def _told(self, stored: Stored) -> Plain:
        """What the table says of a row's data."""
        return {
            "row": "",
            "kept": stored.kept,
            "augmentation": augmentation(stored.run),
            "bytes": stored.bytes,
            "bytes_per_image": stored.bytes / len(self.folder),
            "of_the_files": stored.bytes / self.folder.bytes,
            "samples": stored.samples,
            "steps": steps_of(stored.run),
        }

    def _earlier(self) -> dict[str, Plain]:
        """Rows of results.json that this command does not name: they stay in the table."""
        file, named = self.out / RESULTS, {":".join(filter(None, parse_row(name)[:2])) for name in self.names}
        try:
            rows = read_json(file)["rows"] if file.is_file() else []
            found = {row["row"]: row for row in rows if row["row"] not in named}
            if not all({"kept", "bytes", "top1", "seeds", "seconds"} <= row.keys() for row in found.values()):
                raise ValueError("a row lacks figures")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamageError(f"{file} is malformed", f"restore it, or remove it to make it anew ({error})") from error
        return found


def _outcomes_of(row: Plain) -> list[Outcome]:
    """Of an earlier row."""
    run = run_of("plain_pixel_cpu")  # whichever: its figures alone count
    return [
        Outcome(Trial(row["row"], seed, run, (), ()), {"top1": value}, seconds)
        for seed, value, seconds in zip(row["seeds"], row["top1"], row["seconds"], strict=True)
    ]


def parse_row(text: str) -> tuple[str, str, int]:
    """KIND[:VALUE][@SEEDS] as kind, value and number of seeds."""
    name, at, seeds = text.partition("@")
    kind, _, value = name.partition(":")
    if at and not (seeds.isdecimal() and int(seeds) > 0):
        raise ConfigError(f"row '{text}' has '{seeds}' seeds", "write a number after @, such as tokens@3")
    if kind not in rows:
        raise ConfigError(f"unknown row '{kind}'", nearest(kind, rows))
    return kind, value, int(seeds or 1)


def steps_of(run: Run | Chain) -> int:
    """Steps of a run, or of all runs of a chain; 0 if set by epochs."""
    return sum(link.run.fit.steps for link in run.links) if isinstance(run, Chain) else run.fit.steps


def augmentation(run: Run | Chain) -> str:
    """Names of a run's augmentations."""
    if isinstance(run, Chain):
        return "; ".join(f"{link.name}: {augmentation(link.run)}" for link in run.links)
    quiet = ("embed", "normalise")  # in every run on tokens or pixels
    names = [Augment.choices.name_of(type(step)) for step in run.augment]
    return ", ".join(name for name in names if name not in quiet) or "none"


def markdown(results: Plain) -> str:
    """The results as a Markdown table."""
    lines = [
        "| row | data | augmentation | samples | bytes per image | size vs files | accuracy (%) | vs first row |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for i, row in enumerate(results["rows"]):
        lines.append(
            f"| {row['row']} | {row['kept']} | {row['augmentation']} | {row['samples']:,} | "
            f"{row['bytes_per_image']:,.0f} | {row['of_the_files']:.1%} | {accuracy_cell(row)} | "
            f"{'' if i == 0 else difference_cell(row)} |"
        )
    lines.append(resolution_line(results["deviation"], results["degrees_of_freedom"]))
    return "\n".join(lines) + "\n"


# the rows


def _nothing(self: Compare, text: str) -> None:
    if text:
        raise ConfigError(f"':{text}' follows a row that takes no value", "leave it out")


def _share(self: Compare, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise ConfigError(f"'{text}' is not a share", "write a number above 0 and at most 1, such as uniform:0.2")
    return share


def _quality(self: Compare, text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 95:
        raise ConfigError(f"'{text}' is not a JPEG quality", "write a number from 1 to 95, such as jpeg:10")
    return int(text)


@row("pixels", _nothing)
def pixels(self: Compare, value: str) -> Stored:
    """All images; the run also records a score per image, for row `score`."""
    row = self.folder_row("all image files", self.images, self.folder)
    assert isinstance(row.run, Run)
    return replace(row, run=scored(row.run, len(self.folder)))


@row("uniform", _share)
def uniform(self: Compare, value: str) -> Stored:
    """A random share of each class."""
    index = first_of_each(self.folder.labels, random_rank(len(self.folder), 0), _share(self, value))
    folder = self.copied(f"uniform-{value}", index)
    return self.folder_row(f"random {value} of each class", folder.root, folder)


@row("score", _share)
def score(self: Compare, value: str) -> Stored:
    """The share of each class that row `pixels` learns earliest and forgets least."""
    first = pixels(self, "")
    trial = Trial("pixels", 0, with_seed(first.run, 0), first.data, first.val)
    run_trial(trial, self.out, self.device, self.quiet)
    scores = read_scores(self.out / trial.directory / "run")
    write_scores(self.out / "scores", scores, self.folder)
    index = first_of_each(self.folder.labels, -scores, _share(self, value))
    folder = self.copied(f"score-{value}", index)
    return self.folder_row(f"easiest {value} of each class, by row pixels", folder.root, folder)


@row("resolution", _share)
def resolution(self: Compare, value: str) -> Stored:
    """All images, downscaled by a factor."""
    factor = _share(self, value)

    def smaller(rgb: Image.Image) -> Image.Image:
        size = tuple(max(1, round(side * factor)) for side in rgb.size)
        return rgb.resize((size[0], size[1]), Image.Resampling.BICUBIC)

    folder = self.coded(f"resolution-{value}", smaller, RESIZED_QUALITY)
    return self.folder_row(f"sides x{value}, JPEG quality {RESIZED_QUALITY}", folder.root, folder)


@row("jpeg", _quality)
def jpeg(self: Compare, value: str) -> Stored:
    """All images, re-encoded at a JPEG quality."""
    folder = self.coded(f"jpeg-{value}", lambda rgb: rgb, _quality(self, value))
    return self.folder_row(f"JPEG quality {value}", folder.root, folder)


def _number(self: Compare, text: str) -> int:
    if (text and not text.isdecimal()) or not 1 <= int(text or 1) <= len(self.tokenizers):
        given = f"--tokenizer names {len(self.tokenizers)}"
        raise ConfigError(f"there is no tokenizer number {text or 1}: {given}", "add it to --tokenizer")
    return int(text or 1)


@row("tokens", _number)
def tokens(self: Compare, value: str) -> Stored:
    """Tokens with SeiT's augmentation; value: number of the tokenizer, from 1."""
    return self.token_row(self.token_recipes, _number(self, value))


@row("plain", _number)
def plain(self: Compare, value: str) -> Stored:
    """Tokens with random crops only."""
    return self.token_row(self.plain_recipes, _number(self, value))


def _views(self: Compare, text: str) -> int:
    _number(self, "")
    if not text.isdecimal() or not 2 <= int(text) <= 64:
        raise ConfigError(f"'{text}' is not a number of views", "write a number from 2 to 64, such as views:2")
    return int(text)


@row("views", _views)
def views(self: Compare, value: str) -> Stored:
    """Several random crops of each image as tokens."""
    return self.token_row(self.token_recipes, 1, _views(self, value))


def _chain(self: Compare, text: str) -> None:
    _nothing(self, text)
    _number(self, "")


@row("chain", _chain)
def chain(self: Compare, value: str) -> Stored:
    """Two thirds of the steps on tokens, the rest on pixels; both are stored."""
    first, second = tokens(self, ""), self.folder_row("", self.images, self.folder)
    assert isinstance(first.run, Run)
    assert isinstance(second.run, Run)
    links = Chain((Link("tokens", shorter(first.run, 2 / 3)), Link("pixels", shorter(second.run, 1 / 3))))
    kept = f"{first.kept}, then all files"
    return Stored(links, first.data + second.data, (None, self.val), first.bytes + second.bytes, second.samples, kept)


def shorter(run: Run, share: float) -> Run:
    """The same run for a share of its steps or epochs."""
    fit = run.fit
    return replace(run, fit=replace(fit, steps=round(fit.steps * share), epochs=round(fit.epochs * share)))
