"""From a folder of images to a classifier in one command: look, split, tokenize, train, compare, report.

The tokenizer is the one in the box, the recipe is the one that docs/choosing.md measured best for the number of images,
and beside its accuracy stand those of simpler things on the same split.
OUT holds train.csv and val.csv (the images of each part), train.tok, val.tok, run, results.json and report.html; a step
whose output is there is not repeated.

N images | D channels of the teacher | K classes
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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
from tilework.core.sealed import read_json
from tilework.data.image_files import Broken, attempt, bounded_image
from tilework.data.image_folder import ImageFolder, Level
from tilework.data.images import ImageSource
from tilework.data.label_file import LabelFile
from tilework.data.overlap import shared_images
from tilework.data.split import list_images, split_numbers
from tilework.evaluation import Classification, classify
from tilework.evaluation.accuracy import interval
from tilework.evaluation.colour_histogram import STEPS, colour_histograms
from tilework.evaluation.probe import linear_hits
from tilework.experiments.runner import check_out, claim
from tilework.experiments.start_page import PAGE, write_page
from tilework.experiments.start_parts import Parts, find_parts
from tilework.experiments.statistics import paired_within_noise
from tilework.recipes import run_of
from tilework.runs import train
from tilework.runs.directory import RESULTS
from tilework.runs.trained import Trained
from tilework.store import Store
from tilework.store.finish import is_finished
from tilework.tokenizers.box import FRAMES, Form, box_like, fitted_box, kept_box, load_box, pooled_box
from tilework.tokenizers.image_codes import Tokenizing, try_batch
from tilework.tokenizers.receipts import check_broken, pooled_of, quarantine_of
from tilework.tokenizers.tokenize import tokenize
from tilework.version import __version__

# most training images that a recipe is recommended for, the recipe, and what a step of it costs in images that go
# through the tokenizer (docs/choosing.md)
RECOMMENDED: tuple[tuple[float, str, float], ...] = ((float("inf"), "linear_cpu", 0.3),)
FIVE_VIEWS = 4000  # most training images that five views are taken of: about a tenth of a second of one core each
# rows of the comparison
TRAINED, PROBE, COLOURS, LARGEST, PIXELS = "trained", "probe", "colours", "largest class", "pixels"
PIXEL_RECIPE, TIMED = "plain_pixel_cpu", (2, 10)  # steps of the two short runs that tell what a step costs
SHARE = 0.8  # of each class that is trained on
TRIED = 8  # images that the estimate of time is made from
TIMES, RIVALS, PIXEL_STEPS = "times.json", "right.json", "pixel-steps.json"


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
    pixel_vit: bool = False  # whether a ViT on pixels is trained beside it for the same processor time
    times: Plain = field(default_factory=dict, init=False)

    @cached_property
    def parts(self) -> Parts:
        """Folders, checked."""
        return find_parts(self.images, self.val, self.level)

    @property
    def recipe(self) -> str:
        """The one recommended for so many images."""
        return recommended(len(self.split[0]))[0]

    @cached_property
    def split(self) -> tuple[ImageFolder, ImageFolder]:
        """Images to train and to validate on, those that cannot be read among them."""
        folder, judged = self.parts.folder, self.parts.judged
        if judged is not None:
            return folder, judged
        first, rest = split_numbers(folder, SHARE)
        return folder.take(first), folder.take(rest)

    @cached_property
    def _headers(self) -> tuple[list[tuple[int, int] | str], list[tuple[int, int] | str]]:
        """Height and width of the images of both parts by their headers, or why they cannot be read."""
        first, rest = ([_header(path) for path in folder.paths] for folder in self.split)
        return first, rest

    def look(self) -> Plain:
        """What the images are like."""
        folder = self.parts.folder
        each = np.bincount(folder.labels, minlength=len(folder.classes))
        found = [(key, one) for part, told in zip(self.split, self._headers, strict=True)
                 for key, one in zip(part.keys, told, strict=True)]  # fmt: skip
        broken = [Broken(key, one) for key, one in found if isinstance(one, str)]
        if broken:
            check_broken(broken, len(found), self.max_broken)
        readable = [sum(not isinstance(one, str) for one in told) for told in self._headers]
        sizes = [one for _, one in found if not isinstance(one, str)]
        return {
            "images": len(found),
            "train": readable[0],
            "val": readable[1],
            "classes": len(folder.classes),
            "smallest_class": int(each[each > 0].min()),
            "largest_class": int(each.max()),
            "median_size": [int(median(side)) for side in zip(*sizes, strict=True)],
            "unreadable": len(broken),
            **({"first_unreadable": f"{broken[0].path}: {broken[0].reason}"} if broken else {}),
            "bytes_per_image": folder.bytes / len(folder),
        }

    def plan(self) -> Plain:
        """What would be done, and how long it takes by a few images; writes nothing."""
        check_out(self.out, *filter(None, (self.parts.train, self.parts.val)))
        look = self.look()
        box, card = load_box()
        form = views(len(self.split[0]))
        tokenizer = pooled_box(box, form)
        card = replace(card, size=tokenizer.size or card.size)
        job = Tokenizing(tokenizer, card, pick_device(self.device), pooled=True, frame=FRAMES[form])
        some = np.linspace(0, len(self.parts.folder) - 1, min(TRIED, len(self.parts.folder))).astype(np.int64)
        try_batch(self.parts.folder, job, some[:1])
        begun = monotonic()
        try_batch(self.parts.folder, job, some)
        each = (monotonic() - begun) / len(some)
        recipe, cost = recommended(len(self.split[0]))
        steps = run_of(recipe).fit.total_steps(look["train"])
        cost /= 5 if form == "corners" else 1  # its unit is one view
        seconds = each * (look["images"] / torch.get_num_threads() + steps * cost) * (1 + self.pixel_vit)
        return {**look, "recipe": recipe, "steps": steps, "output": str(self.out), "estimated_minutes": seconds / 60}

    def run(self) -> Plain:
        """All steps; returns what results.json holds. A finished start is read, not repeated."""
        check_out(self.out, *filter(None, (self.parts.train, self.parts.val)))
        if not is_free(self.out):
            self._claim()
            if (results := self._finished()) is not None:
                notice(f"{self.out} is finished; nothing is repeated (another --out trains anew)", self.quiet)
                return results
        plan = self.plan()
        for note in self.parts.folder.notes if not self.quiet else ():
            notice(note)
        for line in announce(self, plan) if not self.quiet else ():
            notice(line)
        make_directory(self.out)
        with locked(self.out):
            fresh = is_free(self.out)  # another process may have filled it meanwhile
            try:
                return self._run(plan)
            except InputError:  # found while images are read: what was begun here would not fit the repaired ones
                if fresh:
                    shutil.rmtree(self.out, ignore_errors=True)
                raise

    def _claim(self) -> None:
        """Take the directory; refuse one of another start, or of the same folder with other images."""
        state = {"start": str(self.images), "val": str(self.parts.val), "level": self.level, "recipe": self.recipe,
                 "max_broken": self.max_broken}  # fmt: skip
        claim(self.out, state, "start")
        if not all(file.is_file() for file in self._lists):
            return
        listed = zip(self.split, self._lists, ("train", "val"), strict=True)
        known, found = set[str](), set[str]()
        for folder, file, part in listed:  # where the parts are given, a name may stand in both
            before = "" if self.parts.judged is None else f"{part}/"
            known |= {before + row.path for row in LabelFile.read(file).rows}
            found |= {before + key for key in folder.keys}
        if known == found:
            return
        new, gone = sorted(found - known), sorted(known - found)
        changes = " and ".join(f"{counted(len(keys), 'image')} {word} ({keys[0]}{', ...' if keys[1:] else ''})"
                               for keys, word in ((new, "new"), (gone, "gone")) if keys)  # fmt: skip
        what = f"the images of {self.images} are not those that {self.out} was begun with: {changes}"
        raise OutputError(what, "choose another --out to train on them as they are now, or undo the change to go on")

    def _finished(self) -> Plain | None:
        """What a finished start has found."""
        if not all((self.out / name).is_file() for name in (RESULTS, PAGE)):
            return None
        results = read_json(self.out / RESULTS)
        if "shared_images" not in results:  # of an earlier version: judged and written again, not trained
            return None
        return None if self.pixel_vit and PIXELS not in [row["row"] for row in results["rows"]] else results

    def _run(self, plan: Plain) -> Plain:
        self._claim()
        self.times = read_json(self.out / TIMES) if (self.out / TIMES).is_file() else {}
        device = pick_device(self.device)
        with self._timed("split"):
            train_images, val_images = self._listed()
        with self._timed("tokenize"):
            self._tokenize(train_images, val_images, device)
        with self._timed("train"):
            title = f"train {self.recipe}"
            train(run_of(self.recipe), self._store("train"), self._store("val"), self.out / "run", self.device,
                  title, self.quiet)  # fmt: skip
        with self._timed("compare"):
            rivals = self._rivals(train_images, val_images)
        if self.pixel_vit:
            rivals |= self._pixels()
        found, shared = self._evaluate(device)
        results = self._results(plan, found, shared, rivals)
        write_page(self.out, results, found, self._paths("val", val_images))
        write_json(self.out / RESULTS, results)
        return results

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

    @property
    def _lists(self) -> tuple[Path, Path]:
        return self.out / "train.csv", self.out / "val.csv"

    def _listed(self) -> tuple[ImageFolder, ImageFolder]:
        """Images to train and to validate on, by label files that say which they are."""
        for folder, file in zip(self.split, self._lists, strict=True):
            if not file.exists():
                list_images(folder, file)
        first, rest = (ImageFolder.open(file, self.parts.folder.classes) for file in self._lists)
        return first, rest

    def _tokenize(self, train_images: ImageFolder, val_images: ImageFolder, device: torch.device) -> None:
        for part, folder in (("train", train_images), ("val", val_images)):
            path = self._store(part)
            if is_finished(path):
                continue
            if part == "train":
                say = partial(notice, quiet=self.quiet)
                form = views(len(folder))
                tokenizer, card = kept_box(path) or fitted_box(folder, device, FRAMES[form], say, form)
            else:
                known = Store(self._store("train"))
                tokenizer, card = box_like(str(known.path), known.manifest.tokenizer, known.codebook.vectors)
            used, bar = np.arange(len(tokenizer.codebook)), Bar(f"tokenize {part}", len(folder), quiet=self.quiet)
            job = Tokenizing(tokenizer, card, device, pooled=True, frame=FRAMES[card.form or "grid"])
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
        """Which validation images simpler things name right: a digit for each, in the order of the store."""
        file = self.out / RIVALS
        if file.is_file():
            return read_json(file)
        notice("comparing with a colour histogram and a linear probe", self.quiet)
        labels = {part: torch.from_numpy(Store(self._store(part)).column("label")).long() for part in ("train", "val")}

        def hits(features: Callable[[str, ImageFolder], Tensor]) -> str:
            seen, judged = features("train", train_images), features("val", val_images)
            return _digits(linear_hits((seen, labels["train"]), (judged, labels["val"]))[0].tolist())

        largest = labels["train"].bincount().argmax()
        found = {
            PROBE: hits(lambda part, _: torch.from_numpy(np.load(pooled_of(self._store(part))))),
            COLOURS: hits(lambda part, folder: colour_histograms(self._paths(part, folder))),
            LARGEST: _digits((labels["val"] == largest).tolist()),
        }
        write_json(file, found)
        return found

    def _pixels(self) -> Plain:
        """The same of a small ViT that learns from the pixels for as long as processors took for all the rest."""
        run = replace(run_of(PIXEL_RECIPE), max_broken=self.max_broken)

        def trained(steps: int, out: Path, quiet: bool) -> float:
            """Processor seconds."""
            begun, one = process_time(), replace(run, fit=replace(run.fit, steps=steps))
            train(one, *self._lists, out, self.device, f"train {PIXEL_RECIPE}", quiet)
            return process_time() - begun

        file, timing = self.out / PIXEL_STEPS, self.out / "pixel-timing"
        if not file.is_file():
            notice("comparing with a small ViT on pixels, trained for the same processor time", self.quiet)
            shutil.rmtree(timing, ignore_errors=True)
            few, more = (trained(steps, timing / f"{steps}", True) for steps in TIMED)
            shutil.rmtree(timing)
            each = max(1e-3, more - few) / (TIMED[1] - TIMED[0])
            budget = sum(self.times[name][1] for name in ("tokenize", "train", "compare"))
            write_json(file, {"steps": max(TIMED[1], round(budget / each))})
        with self._timed("pixels"):
            trained(int(read_json(file)["steps"]), self.out / "pixel-run", self.quiet)
        model = Trained.open(self.out / "pixel-run")
        judged = model.on(self._lists[1], pick_device(self.device))
        found = classify(model.classifier, judged.source, judged.steps, pick_device(self.device))
        assert isinstance(judged.source, ImageSource)
        keys = [judged.source.folder.key(number) for number in found.numbers.tolist()]
        right = dict(zip(keys, (found.predicted == found.labels).tolist(), strict=True))
        return {PIXELS: _digits([right.get(key, False) for key in Store(self._store("val")).column("key")])}

    def _evaluate(self, device: torch.device) -> tuple[Classification, int]:
        """Answers for the validation images, and how many of these are training images too."""
        trained = Trained.open(self.out / "run")
        opened = trained.on(self._store("val"), device)
        shared, _ = shared_images(trained.on(self._store("train"), device).source, opened.source)
        return classify(trained.classifier, opened.source, opened.steps, device), shared

    def _results(self, plan: Plain, found: Classification, shared: int, rivals: Plain) -> Plain:
        store, count = Store(self._store("train")), len(found.labels)
        features = 4 * np.load(pooled_of(self._store("train")), mmap_mode="r").shape[1]
        size, trained = sum(store.sizes.values()) / len(store), found.top(1)
        codes = store.sizes["tokens"] / len(store)
        own = _digits((found.predicted == found.labels).tolist())
        known: list[tuple[str, str, float | None, str]] = [
            (TRAINED, f"trained: {self.recipe} on {prod(store.grid)} codes an image", codes, own),
            (PROBE, "linear probe of the same network's pooled features", float(features), rivals[PROBE]),
            (COLOURS, f"logistic regression of {STEPS**3} colours", 4.0 * STEPS**3, rivals[COLOURS]),
            (LARGEST, "always the largest class", None, rivals[LARGEST]),
        ]
        if PIXELS in rivals:
            steps = read_json(self.out / PIXEL_STEPS)["steps"]
            what = f"small ViT on pixels, the same processor time ({steps:,} steps)"
            known.append((PIXELS, what, plan["bytes_per_image"], rivals[PIXELS]))
        rows: list[Plain] = [
            {"row": row, "what": what, "bytes_per_image": held, "accuracy": _right(hits).mean().item(),
             "difference": (hits.count("1") - own.count("1")) / count,
             "within_noise": paired_within_noise(_right(hits), _right(own))}
            for row, what, held, hits in known
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
            "interval": list(interval(trained, count)),
            "shared_images": shared,
            "simpler_and_better": better,
            "rows": rows,
            "codes_bytes_per_image": codes,
            "store_bytes_per_image": size,
            "fixed_bytes": store.sizes["codebook"] + store.sizes["manifest"],
            "original_bytes_per_image": plan["bytes_per_image"],
            **{key: value for key, value in found.summary().items() if key not in ("images", "top1")},
            "seconds": {name: round(value[0], 1) for name, value in self.times.items()},
            "cpu_seconds": {name: round(value[1], 1) for name, value in self.times.items()},
            "software": f"tilework {__version__}, torch {torch.__version__}",
        }


def _digits(right: Sequence[bool]) -> str:
    return "".join("1" if one else "0" for one in right)


def _right(digits: str) -> np.ndarray:
    """(N,) bool."""
    return np.array([digit == "1" for digit in digits])


def views(images: int) -> Form:
    """How many views the network takes of each of so many training images: five, or one where five take too long."""
    return "corners" if images <= FIVE_VIEWS else "pooled"


def recommended(images: int) -> tuple[str, float]:
    """The recipe for so many training images, and the cost of its step in images."""
    return next((recipe, cost) for most, recipe, cost in RECOMMENDED if images <= most)


def announce(start: FolderStart, plan: Plain) -> list[str]:
    """What will be done, in five lines."""
    height, width = plan["median_size"]
    few, many = plan["smallest_class"], plan["largest_class"]
    given = start.parts.val
    how = f"validate on {given}" if given else f"a random {1 - SHARE:.0%} of each class is for validation"
    each = f"{few:,} to {many:,}" if few < many else f"{many:,}"
    missing = plan["classes"] - len(np.unique(start.split[1].labels))
    unseen = f"; {missing} of {plan['classes']} classes have none" if missing else ""
    return [
        f"{start.images}: {counted(plan['images'], 'image')} of {plan['classes']} classes "
        f"({each} each), about {width}x{height} px, {plan['bytes_per_image'] / 1e3:,.1f} kB each"
        + (f"; {plan['unreadable']:,} cannot be read" if plan["unreadable"] else ""),
        f"1. split: train on {plan['train']:,}, {how} ({plan['val']:,} images{unseen})",
        f"2. tokenize: codes of a frozen EfficientNet-Lite0, which has seen ImageNet-1k (the tokenizer 'box'), "
        f"{'five views' if views(plan['train']) == 'corners' else 'one view'} of each image",
        f"3. train: recipe {plan['recipe']}, {plan['steps']:,} steps (docs/choosing.md), "
        f"beside a linear probe{', a small ViT on pixels' * start.pixel_vit} and a colour histogram on the same images",
        f"4. {_duration(plan['estimated_minutes'])} on this machine as it is now; all goes into {start.out}; "
        "stop it at any time, repeat the command to go on",
    ]


def _duration(minutes: float) -> str:
    return f"about {max(5, 5 * round(12 * minutes))} seconds" if minutes < 1.5 else f"about {round(minutes)} minutes"


def _header(path: Path) -> tuple[int, int] | str:
    """Height and width of an image, or why it cannot be read; nothing is decoded."""

    def size() -> tuple[int, int]:
        with bounded_image(path) as image:
            return image.height, image.width

    return attempt(path, size)
