"""From a folder of images to a classifier in one command: look, split, tokenize, train, compare, report.

The tokenizer is the one in the box, the recipe is the one that docs/choosing.md measured best for the number of images,
and beside its accuracy stand those of simpler things on the same split.
OUT holds train.csv and val.csv (where the folder has no validation part), train.tok, val.tok, run, results.json and
report.html; a step whose output is there is not repeated.

N images | D channels of the teacher | K classes
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import prod
from pathlib import Path
from statistics import median
from time import monotonic, process_time

import numpy as np
import torch
from torch import Tensor

from tilework.core.config import Plain
from tilework.core.console import Bar, counted, notice
from tilework.core.distributed import pick_device
from tilework.core.errors import InputError, OutputError
from tilework.core.files import is_free, locked, make_directory, write_json
from tilework.core.location import is_store
from tilework.core.sealed import read_json
from tilework.data.images import PARTS, ImageFolder, Level, attempt, open_stored
from tilework.data.labels import UNLABELLED
from tilework.data.split import split_images
from tilework.evaluation import Classification, classify
from tilework.evaluation.colour_histogram import STEPS, colour_histograms
from tilework.evaluation.probe import linear_accuracy
from tilework.experiments.runner import claim
from tilework.experiments.start_page import write_page
from tilework.experiments.statistics import within_noise
from tilework.recipes import run_of
from tilework.runs import train
from tilework.runs.directory import RESULTS
from tilework.runs.trained import Trained
from tilework.store import Store
from tilework.tokenizers.box import box_like, fitted_box, kept_box, load_box
from tilework.tokenizers.tokenize import Tokenizing, pooled_of, quarantine_of, tokenize, try_batch
from tilework.version import __version__

# most training images that a recipe is recommended for, the recipe, and what a step of it costs in images that go
# through the tokenizer (docs/choosing.md)
RECOMMENDED: tuple[tuple[float, str, float], ...] = ((float("inf"), "linear_cpu", 0.3),)
VALIDATION = ("val", "valid", "validation", "test")  # folders beside train/, the first that is there
TRAINED, PROBE, COLOURS, LARGEST = "trained", "probe", "colours", "largest class"  # rows of the comparison
SHARE = 0.8  # of each class that is trained on
FEWEST = 10  # images
LOOKS = 200  # images whose sizes are looked at
TRIED = 8  # images that the estimate of time is made from
TIMES, RIVALS = "times.json", "rivals.json"


@dataclass(frozen=True)
class Parts:
    """What there is to train and to validate on."""

    train: Path
    val: Path | None  # None: a part of `train` is split off
    folder: ImageFolder  # of `train`
    judged: ImageFolder | None  # of `val`


def find_parts(images: Path, val: Path | None = None, level: Level = "leaf") -> Parts:
    """Images as people have them: class folders, nested or not, a label file, or train/ and val/ with either."""
    if images.is_dir() and val is None:
        found = {entry.name for entry in images.iterdir() if entry.is_dir() and not entry.name.startswith(".")}
        if "train" in found and found <= PARTS:
            val = next((images / name for name in VALIDATION if name in found), None)
            images = images / "train"
    if val is not None and is_store(val):
        raise InputError(f"{val} is a token store, not images", "give a folder of images, or a label file")
    folder = ImageFolder.open(images, level=level)
    if folder.classes == (UNLABELLED,):
        hint = "give each class a sub-folder of its own, or a label file"
        raise InputError(f"{images} has no class folders and no labels", hint)
    each = np.bincount(folder.labels)
    full = int((each > 0).sum())
    if val is None and each.max() < 3:
        raise InputError(f"no class of {images} has 3 images", "add some, or give images to validate on with --val")
    if full < 2 or len(folder) < FEWEST:
        what = f"{images} has {counted(len(folder), 'image')} of {full} class{'' if full == 1 else 'es'}"
        raise InputError(what, f"two classes and {FEWEST} images are needed at least")
    return Parts(images, val, folder, None if val is None else ImageFolder.open(val, folder.classes, level))


@dataclass
class FolderStart:
    """A start in its directory."""

    images: Path
    out: Path
    val: Path | None = None
    level: Level = "leaf"
    max_broken: float = 0.2  # share of unreadable images above which nothing is trained
    device: str = "auto"
    quiet: bool = False
    times: Plain = field(default_factory=dict, init=False)

    @cached_property
    def parts(self) -> Parts:
        """Folders, checked."""
        return find_parts(self.images, self.val, self.level)

    @property
    def recipe(self) -> str:
        """The one recommended for so many images."""
        return recommended(self._counts[0])[0]

    @property
    def _counts(self) -> tuple[int, int]:
        """Images to train and to validate on."""
        total, judged = len(self.parts.folder), self.parts.judged
        return (round(SHARE * total), total - round(SHARE * total)) if judged is None else (total, len(judged))

    def look(self) -> Plain:
        """What the images are like."""
        folder = self.parts.folder
        each = np.bincount(folder.labels, minlength=len(folder.classes))
        sizes, broken = _sizes(folder)
        if not sizes:
            raise InputError(f"none of {broken} images of {folder.root} can be read", "repair or replace them")
        return {
            "images": len(folder) + (0 if self.parts.judged is None else len(self.parts.judged)),
            "train": self._counts[0],
            "val": self._counts[1],
            "classes": len(folder.classes),
            "smallest_class": int(each[each > 0].min()),
            "largest_class": int(each.max()),
            "median_size": [int(median(side)) for side in zip(*sizes, strict=True)],
            "unreadable_in_sample": f"{broken} of {len(sizes) + broken}",
            "bytes_per_image": folder.bytes / len(folder),
        }

    def plan(self) -> Plain:
        """What would be done, and how long it takes by a few images; writes nothing."""
        self._check_out()
        look = self.look()
        tokenizer, card = load_box()
        job = Tokenizing(tokenizer, card, pick_device(self.device), pooled=True)
        some = np.linspace(0, len(self.parts.folder) - 1, min(TRIED, len(self.parts.folder))).astype(np.int64)
        try_batch(self.parts.folder, job, some[:1])
        begun = monotonic()
        try_batch(self.parts.folder, job, some)
        each = (monotonic() - begun) / len(some)
        recipe, cost = recommended(self._counts[0])
        steps = run_of(recipe).fit.total_steps(self._counts[0])
        seconds = each * (look["images"] / torch.get_num_threads() + steps * cost)
        return {**look, "recipe": recipe, "steps": steps, "output": str(self.out), "estimated_minutes": seconds / 60}

    def run(self) -> Plain:
        """All steps; returns what results.json holds."""
        plan = self.plan()
        for note in self.parts.folder.notes if not self.quiet else ():
            notice(note)
        for line in announce(self, plan) if not self.quiet else ():
            notice(line)
        fresh = is_free(self.out)
        make_directory(self.out)
        try:
            return self._run(plan)
        except InputError:  # found while images are read: what was begun here would not fit the repaired ones
            if fresh:
                shutil.rmtree(self.out, ignore_errors=True)
            raise

    def _run(self, plan: Plain) -> Plain:
        with locked(self.out):
            known = ("images", "train", "val", "classes")
            state = {"start": str(self.images), "val": str(self.parts.val), "level": self.level, "recipe": self.recipe,
                     "max_broken": self.max_broken, **{f"{name}_seen": plan[name] for name in known}}  # fmt: skip
            claim(self.out, state, "start")
            self.times = read_json(self.out / TIMES) if (self.out / TIMES).is_file() else {}
            device = pick_device(self.device)
            with self._timed("split"):
                train_images, val_images = self._split()
            with self._timed("tokenize"):
                self._tokenize(train_images, val_images, device)
            with self._timed("train"):
                title = f"train {self.recipe}"
                train(run_of(self.recipe), self._store("train"), self._store("val"), self.out / "run", self.device,
                      title, self.quiet)  # fmt: skip
            with self._timed("compare"):
                rivals = self._rivals(train_images, val_images)
            found = self._evaluate(device)
            results = self._results(plan, found, rivals)
            write_page(self.out, results, found, self._paths("val", val_images))
            write_json(self.out / RESULTS, results)
        return results

    def _check_out(self) -> None:
        if self.out.exists() and not self.out.is_dir():
            raise OutputError(f"{self.out} is a file", "choose another --out")
        for path in filter(None, (self.parts.train, self.parts.val)):
            if path.is_dir() and self.out.absolute().is_relative_to(path.absolute()):
                raise OutputError(f"{self.out} lies among the images in {path}", "choose another --out")

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        """Add the time of a step, in seconds of the clock and of processors, also if it is stopped."""
        clock, cpu = monotonic(), process_time()
        try:
            yield
        finally:
            before = self.times.get(name, [0.0, 0.0])
            self.times[name] = [before[0] + monotonic() - clock, before[1] + process_time() - cpu]
            write_json(self.out / TIMES, self.times)

    def _store(self, part: str) -> Path:
        return self.out / f"{part}.tok"

    def _split(self) -> tuple[ImageFolder, ImageFolder]:
        """Folders to train and to validate on."""
        if self.parts.judged is not None:
            return self.parts.folder, self.parts.judged
        files = self.out / "train.csv", self.out / "val.csv"
        if not files[1].exists():
            split_images(self.parts.folder, files, SHARE)
        folder, classes = ImageFolder.open(files[0], self.parts.folder.classes), self.parts.folder.classes
        return folder, ImageFolder.open(files[1], classes)

    def _tokenize(self, train_images: ImageFolder, val_images: ImageFolder, device: torch.device) -> None:
        for part, folder in (("train", train_images), ("val", val_images)):
            path = self._store(part)
            if path.exists():
                continue
            if part == "train":
                say = partial(notice, quiet=self.quiet)
                tokenizer, card = kept_box(path) or fitted_box(folder, device, say=say)
            else:
                known = Store(self._store("train"))
                tokenizer, card = box_like(str(known.path), known.manifest.tokenizer, known.codebook.vectors)
            used, bar = np.arange(len(tokenizer.codebook)), Bar(f"tokenize {part}", len(folder), quiet=self.quiet)
            job = Tokenizing(tokenizer, card, device, pooled=True)
            try:
                broken = tokenize(folder, job, path, used=used, max_broken=self.max_broken, progress=bar.update)
            finally:
                bar.close()
            if broken:
                notice(f"{counted(len(broken), 'image')} cannot be read: see {quarantine_of(path)}", self.quiet)

    def _paths(self, part: str, folder: ImageFolder) -> list[Path]:
        """The images of a store, in its order: those that could be read."""
        known = dict(zip(folder.keys, folder.paths, strict=True))
        return [known[key] for key in Store(self._store(part)).column("key")]

    def _rivals(self, train_images: ImageFolder, val_images: ImageFolder) -> Plain:
        """Accuracy of simpler things on the same images."""
        file = self.out / RIVALS
        if file.is_file():
            return read_json(file)
        notice("comparing with a colour histogram and a linear probe", self.quiet)
        labels = {part: torch.from_numpy(Store(self._store(part)).column("label")).long() for part in ("train", "val")}

        def accuracy(features: Callable[[str, ImageFolder], Tensor]) -> float:
            seen, judged = features("train", train_images), features("val", val_images)
            return linear_accuracy((seen, labels["train"]), (judged, labels["val"]))[0]

        largest = labels["train"].bincount().argmax()
        found = {
            PROBE: accuracy(lambda part, _: torch.from_numpy(np.load(pooled_of(self._store(part))))),
            COLOURS: accuracy(lambda part, folder: colour_histograms(self._paths(part, folder))),
            LARGEST: float((labels["val"] == largest).float().mean()),
        }
        write_json(file, found)
        return found

    def _evaluate(self, device: torch.device) -> Classification:
        trained = Trained.open(self.out / "run")
        opened = trained.on(self._store("val"), device)
        return classify(trained.classifier, opened.source, opened.steps, device)

    def _results(self, plan: Plain, found: Classification, rivals: Plain) -> Plain:
        store, count = Store(self._store("train")), len(found.labels)
        features = 4 * np.load(pooled_of(self._store("train")), mmap_mode="r").shape[1]
        size, trained = sum(store.sizes.values()) / len(store), found.top(1)
        codes = store.sizes["tokens"] / len(store)
        known: list[tuple[str, str, float | None, float]] = [
            (TRAINED, f"trained: {self.recipe} on {prod(store.grid)} codes an image", codes, trained),
            (PROBE, "linear probe of the same network's pooled features", float(features), rivals[PROBE]),
            (COLOURS, f"logistic regression of {STEPS**3} colours", 4.0 * STEPS**3, rivals[COLOURS]),
            (LARGEST, "always the largest class", None, rivals[LARGEST]),
        ]
        rows: list[Plain] = [
            {"row": row, "what": what, "bytes_per_image": held, "accuracy": accuracy,
             "difference": accuracy - trained, "within_noise": within_noise(accuracy, trained, count)}
            for row, what, held, accuracy in known
        ]  # fmt: skip
        better = [row["row"] for row in rows[1:] if row["difference"] > 0 and not row["within_noise"]]
        images = {
            name: value
            for name, value in plan.items()
            if name not in ("recipe", "steps", "output", "estimated_minutes")
        }
        return {
            "start": str(self.images),
            "out": str(self.out),
            "images": {**images, "train": len(store), "val": count},
            "recipe": self.recipe,
            "accuracy": trained,
            "simpler_and_better": better,
            "rows": rows,
            "store_bytes_per_image": size,
            "original_bytes_per_image": plan["bytes_per_image"],
            **{key: value for key, value in found.summary().items() if key not in ("images", "top1")},
            "seconds": {name: round(value[0], 1) for name, value in self.times.items()},
            "cpu_seconds": {name: round(value[1], 1) for name, value in self.times.items()},
            "software": f"tilework {__version__}, torch {torch.__version__}",
        }


def recommended(images: int) -> tuple[str, float]:
    """The recipe for so many training images, and the cost of its step in images."""
    return next((recipe, cost) for most, recipe, cost in RECOMMENDED if images <= most)


def announce(start: FolderStart, plan: Plain) -> list[str]:
    """What will be done, in five lines."""
    height, width = plan["median_size"]
    few, many = plan["smallest_class"], plan["largest_class"]
    given = start.parts.val
    how = f"validate on {given}" if given else f"a random {1 - SHARE:.0%} of each class is for validation"
    return [
        f"{start.images}: {counted(plan['images'], 'image')} of {plan['classes']} classes "
        f"({few:,} to {many:,} each), about {width}x{height} px, {plan['bytes_per_image'] / 1e3:,.1f} kB each",
        f"1. split: train on {plan['train']:,}, {how} ({plan['val']:,} images)",
        "2. tokenize: codes of a frozen EfficientNet-Lite0, which has seen ImageNet-1k (the tokenizer 'box')",
        f"3. train: recipe {plan['recipe']}, {plan['steps']:,} steps (docs/choosing.md), "
        "beside a linear probe and a colour histogram on the same images",
        f"4. {_duration(plan['estimated_minutes'])} on this machine as it is now; all goes into {start.out}; "
        "stop it at any time, repeat the command to go on",
    ]


def _duration(minutes: float) -> str:
    return f"about {max(5, 5 * round(12 * minutes))} seconds" if minutes < 1.5 else f"about {round(minutes)} minutes"


def _sizes(folder: ImageFolder) -> tuple[list[tuple[int, int]], int]:
    """Height and width of some images by their headers, and how many of these cannot be read."""
    some = np.unique(np.linspace(0, len(folder) - 1, min(LOOKS, len(folder))).astype(np.int64))

    def size(path: Path) -> tuple[int, int]:
        with open_stored(path) as image:
            return image.height, image.width

    found = [attempt(path, partial(size, path)) for path in folder.files(some.tolist())]
    good = [one for one in found if not isinstance(one, str)]
    return good, len(found) - len(good)
