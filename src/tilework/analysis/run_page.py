"""The part of a report about a trained run: figures, classes, mistakes with pictures, curves, bytes, settings.

N samples | K classes | h, w pixels
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

import numpy as np

from tilework.analysis.segment_page import FIGURES, add_figures, add_masks
from tilework.core.config import to_yaml
from tilework.core.distributed import pick_device
from tilework.core.errors import TileworkError
from tilework.core.location import Location, is_store, location
from tilework.core.sealed import read_json
from tilework.data import ImageFolder
from tilework.data.class_names import shown_names
from tilework.data.pairs import open_pairs
from tilework.evaluation import Classification, classify
from tilework.evaluation.accuracy import interval
from tilework.report import Card, Page
from tilework.report.plots import run_plots
from tilework.runs.build import with_batch
from tilework.runs.export import open_model
from tilework.runs.pictures import samples_of
from tilework.runs.segment import Segmenter
from tilework.runs.trained import Trained
from tilework.store import Store

MOST_CLASSES = 40  # in the table; of more the hardest
PAIRS = 12  # of classes that are mistaken for each other
NAMES = {**FIGURES, "top1": "accuracy", "top5": "top-5 accuracy", "psnr": "PSNR (dB)"}


@dataclass(frozen=True)
class Wanted:
    """What a report of runs shall show."""

    data: Location | None = None  # to evaluate on; None: the validation data of the run
    images: Path | None = None  # photographs of a store
    tokenizer: Path | None = None
    names: Path | None = None  # of classes
    best: bool = False
    count: int = 12  # pictures
    device: str = "auto"


Headline = list[str]  # name, what it is, figure, bytes per training image


def add_run(page: Page, path: Path, wanted: Wanted, command: str) -> Headline:
    """Everything about a run or an exported model; returns its line of the summary. command: that trains it again."""
    trained = open_model(path, wanted.best)
    told = read_json(trained.path / "data.json") if trained.exported == "no" else {}
    data = wanted.data or (location(told["val"]) if told.get("val") else None)
    shown_names(trained.spec.classes, wanted.names)  # refuses a list of other classes
    task, size = trained.run.objective.task, _bytes(told.get("train"))
    network, kind = type(trained.run.model).__name__.removesuffix("Config"), trained.spec.stage
    parameters = sum(p.numel() for p in trained.network.parameters())
    many = f"{parameters / 1e6:.3g} M" if parameters >= 1e5 else f"{parameters:,}"
    about = f"{network} of {many} parameters on {'images' if kind == 'pixels' else 'tokens'}"
    page.heading(f"{trained.name}: {about}")
    figure = _figure(trained)
    judge = PARTS.get(task.metric)
    if judge is not None and data is not None:
        try:
            figure = judge(page, trained, data, wanted)
        except TileworkError as error:
            if wanted.data is not None:
                raise
            page.text(f"Not evaluated on {data}: {error}.")
            page.tiles(_known(trained))
    else:
        if judge is not None:
            page.text("No validation data are known: give --data to see classes and mistakes.")
        page.tiles(_known(trained))
    log = [] if trained.exported != "no" else trained.directory.log()
    if drawn := run_plots(log, task.metric, task.higher_is_better, NAMES.get(task.metric, task.metric)):
        page.heading("Training", 3)
        page.plots(drawn)
        page.text(_training(trained, log, size))
    page.heading("Data and bytes", 3)
    page.table(["what", "value"], _data_rows(trained, told, size))
    page.heading("Settings and commands", 3)
    words = [command] if command else []
    run, place = quote(str(path)), quote(str(data or "DATA"))
    page.commands([*words, f"tilework eval {run} --data {place}", f"tilework predict {run} PHOTO.jpg"])
    page.folded("all settings (YAML)", to_yaml(trained.run))
    return [trained.name, about, figure, "" if size is None else f"{size[1]:,.0f}"]


def _figure(trained: Trained) -> str:
    metric = trained.run.objective.task.metric
    value = trained.figures.get(metric)
    return "" if value is None else f"{NAMES.get(metric, metric)} {_value(metric, value)}"


def _value(name: str, value: float) -> str:
    return f"{value:.1%}" if name in NAMES and name != "psnr" else f"{value:,.4g}"


def _known(trained: Trained) -> list[tuple[str, str]]:
    """Figures at the end of training."""
    return [(NAMES.get(name, name.replace("_", " ")), _value(name, value)) for name, value in trained.figures.items()]


# what is known of each kind of run, by the headline figure of its task


def _classifier(page: Page, trained: Trained, data: Location, wanted: Wanted) -> str:
    device = pick_device(wanted.device)
    opened = trained.on(data, device, wanted.tokenizer)
    found = classify(trained.classifier, opened.source, opened.steps, device)
    found = replace(found, classes=shown_names(found.classes, wanted.names))
    count, accuracy = len(found.labels), found.top(1)
    low, high = interval(accuracy, count)
    figures = [("accuracy", f"{accuracy:.1%}"), ("95 % interval", f"{low:.1%} to {high:.1%}")]
    figures += [("top-5 accuracy", f"{found.top(5):.1%}")] if len(found.classes) > 5 else []
    page.tiles([*figures, ("images", f"{count:,}"), ("classes", f"{len(found.classes):,}")])
    page.text(f"Evaluated on {data}{', best checkpoint' if wanted.best else ''}.")
    page.heading("Accuracy of each class", 3)
    _class_table(page, found)
    page.heading("Confusion", 3)
    page.confusion(found.confusion, found.classes)
    pairs = confused(found.confusion, PAIRS)
    if pairs:
        rows = [[found.classes[i], found.classes[j], f"{n:,}", f"{share:.0%}"] for i, j, n, share in pairs]
        page.table(["true class", "taken for", "images", "of the class"], rows)
    page.heading("Most confident mistakes", 3)
    wrong = most_confident_mistakes(found, wanted.count)
    if not len(wrong):
        page.text("There are none.")
    else:
        tokenizer = wanted.tokenizer or trained.tokenizer
        samples = samples_of(opened.source, found.numbers[wrong].tolist(), tokenizer, wanted.images)
        page.cards([_mistake(found, i, s.key, s.pictures) for i, s in zip(wrong.tolist(), samples, strict=True)])
        if any(s.codes is not None and s.photograph is None for s in samples):
            page.text(
                "Pictures are decoded from the codes, or are the codes as colours: give --images for photographs."
            )
    return f"accuracy {accuracy:.1%}"


def _class_table(page: Page, found: Classification) -> None:
    counts = found.confusion
    total, right = counts.sum(1), counts.diagonal()
    shares = right / np.maximum(1, total)
    order = np.arange(len(total)) if len(total) <= MOST_CLASSES else np.argsort(np.where(total > 0, shares, 2))
    rows, bars = [], []
    for i in order[:MOST_CLASSES].tolist():
        other = counts[i].copy()
        other[i] = 0
        taken = f"{found.classes[int(other.argmax())]} ({other.max():,})" if other.max() else ""
        known = total[i] > 0
        rows.append([found.classes[i], f"{total[i]:,}", f"{100 * shares[i]:.1f}" if known else "-", taken])
        bars.append(float(shares[i]) if known else None)
    page.table(["class", "images", "right (%)", "most often taken for"], rows, bars)
    if len(total) > MOST_CLASSES:
        page.text(f"The {MOST_CLASSES} hardest of {len(total):,} classes.")
        lines = [f"{found.classes[i]}: {right[i]:,} of {total[i]:,}" for i in range(len(total))]
        page.folded("all classes", "\n".join(lines))


def _mistake(found: Classification, i: int, key: str, pictures: list[np.ndarray]) -> Card:
    chances, guess = found.probabilities[i], int(found.predicted[i])
    true = int(found.labels[i])
    said, truth = (f"{found.classes[k]} ({chances[k]:.0%})" for k in (guess, true))
    return Card(pictures, key, [(f"said: {said}", False), (f"true: {truth}", True)])


def most_confident_mistakes(found: Classification, count: int) -> np.ndarray:
    """Numbers of the wrong answers with the highest probability, (n,), the highest first."""
    wrong = np.flatnonzero(found.predicted != found.labels)
    sure = found.probabilities[wrong, found.predicted[wrong]]
    return wrong[np.argsort(-sure, kind="stable")[:count]]


def confused(counts: np.ndarray, most: int) -> list[tuple[int, int, int, float]]:
    """True class, prediction, how often, and as a share of the class; the most frequent first. counts: (K, K)."""
    others = counts * (1 - np.eye(len(counts), dtype=counts.dtype))
    order = np.argsort(-others, axis=None, kind="stable")[:most]
    pairs = [divmod(int(i), len(counts)) for i in order]
    return [(i, j, int(others[i, j]), float(others[i, j] / counts[i].sum())) for i, j in pairs if others[i, j]]


def _segmenter(page: Page, trained: Trained, data: Location, wanted: Wanted) -> str:
    segmenter = Segmenter.open(trained.path, wanted.device, tokenizer=wanted.tokenizer, best=wanted.best)
    found = segmenter.evaluate(data)
    classes = shown_names(found.classes, wanted.names)
    add_figures(page, found, classes, 3)
    page.text(f"Evaluated on {data}{', best checkpoint' if wanted.best else ''}.")
    page.heading("Images with the fewest right pixels", 3)
    right = found.by_image[:, 0].sum(1) / np.maximum(1, found.by_image[:, 1].sum(1))  # (N,)
    worst = np.argsort(right, kind="stable")[: wanted.count].tolist()
    samples = segmenter.samples(data, worst)
    add_masks(page, [(one, f"{right[i]:.1%} right") for i, one in zip(worst, samples, strict=True)], classes)
    return f"mIoU {found.figures['miou']:.1%}"


PARTS: dict[str, Callable[[Page, Trained, Location, Wanted], str]] = {"top1": _classifier, "miou": _segmenter}


# what holds for every run


def _training(trained: Trained, log: Sequence[dict[str, object]], size: tuple[int, float] | None) -> str:
    plain = read_json(trained.path / "results.json") if trained.directory.finished else {}
    steps = plain.get("steps", log[-1]["step"] if log else 0)
    batch = trained.run.fit.batch
    used = batch if size is None else with_batch(trained.run, trained.run.samples or size[0]).fit.batch
    told = [f"{steps:,} steps in batches of {used}" + (f" (of {batch}, were there more images)" * (used < batch))]
    told += [f"{plain['skipped_steps']:,} skipped (gradients not finite)"] if plain.get("skipped_steps") else []
    told += ["stopped early"] if plain.get("stopped_early") else []
    told += [] if trained.directory.finished else ["not finished"]
    return "; ".join(told) + "."


def _bytes(data: str | None) -> tuple[int, float] | None:
    """Images of training data on this machine and bytes of each; None where they are not at hand."""
    place = location(data) if data else None
    if not isinstance(place, Path) or not place.exists():
        return None
    try:
        if is_store(place):
            store = Store(place)
            return len(store), sum(store.sizes.values()) / len(store)
        folder = open_pairs(place, None) or ImageFolder.open(place)
        return len(folder), folder.bytes / len(folder)
    except (TileworkError, OSError):
        return None


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:,.1f} kB"


def _data_rows(trained: Trained, told: dict[str, object], size: tuple[int, float] | None) -> list[list[str]]:
    spec = trained.spec
    grid = "x".join(map(str, spec.stored or spec.grid))
    rows = [
        [name, str(told[key])]
        for name, key in (("training data", "train"), ("validation data", "val"), ("started from", "start"))
        if told.get(key)
    ]
    if size is not None:
        rows += [["training images", f"{size[0]:,}"], ["bytes per image", f"{size[1]:,.0f}"]]
    if trained.run.samples:
        rows.append(["of which trained on", f"{trained.run.samples:,}"])
    rows.append(["input", f"{grid} {'pixels' if spec.stage == 'pixels' else 'codes'}"])
    if spec.tokenizer:
        known = spec.tokenizer.get("name", "")
        rows.append(
            ["tokenizer", f"{known} ({spec.tokenizer['sha256'][:12]})" if "sha256" in spec.tokenizer else known]
        )
    files = [file for file in trained.path.rglob("*.safetensors") if "checkpoints" not in file.parts]
    weights = trained.directory.checkpoints.rglob("*.safetensors") if trained.exported == "no" else files
    rows.append(["weights on disk", _size(sum(file.stat().st_size for file in weights))])
    rows.append(["licence of the data", spec.licence or "not stated"])
    return rows
