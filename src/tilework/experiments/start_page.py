"""The page of `tilework start`: what was found, beside simpler things, and where the classifier errs.

N images | K classes
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import join, quote

import numpy as np

from tilework.core.config import Plain
from tilework.core.files import write
from tilework.data.image_files import decode_image
from tilework.evaluation import Classification
from tilework.report import Card, Page

PAGE = "report.html"
MISTAKES, SIDE = 12, 160  # pictures; their pixels
PAIRS = 10  # of classes that are confused most
FEW = 50  # validation images, below which an accuracy says little
SMALLEST = 5e-4  # difference in accuracy that is shown


def next_commands(out: Path) -> list[str]:
    """What a user may do with the run."""
    run, val = (quote(str(out / name)) for name in ("run", "val.tok"))
    return [
        f"tilework predict {run} PHOTO|FOLDER ...",
        f"tilework eval {run} --data {val}",
        f"tilework export {run} --out model --onnx --pixels",
        f"tilework report {run}",
    ]


def comparison(results: Plain) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table: what was trained first."""
    lines = []
    for row in results["rows"]:
        held = "-" if row["bytes_per_image"] is None else f"{row['bytes_per_image']:,.0f}"
        points = f"{100 * row['difference']:+.1f} points" + (", within noise" if row["within_noise"] else "")
        lines.append([row["what"], held, f"{row['accuracy']:.1%}", "" if row is results["rows"][0] else points])
    return ["", "bytes per image", "accuracy", "difference"], lines


def bytes_line(results: Plain) -> str:
    """What an image takes, in codes and in the whole store."""
    codes, whole = results["codes_bytes_per_image"], results["store_bytes_per_image"]
    fixed = results["fixed_bytes"]
    said = f"{codes:,.0f} B of codes per image; the whole store of training images {whole:,.0f} B per image"
    share = fixed / (whole * results["images"]["train"])
    return f"{said}, {share:.0%} of it tables that do not grow with the images ({fixed / 1e3:,.0f} kB)."


def doubts(results: Plain) -> list[str]:
    """Why the accuracy may say little."""
    count, shared = results["images"]["val"], results["shared_images"]
    found = []
    if shared:
        found.append(f"{shared:,} of {count:,} validation images are training images too: the accuracy is too high.")
    if count < FEW:
        low, high = results["interval"]
        found.append(f"With {count:,} validation images the accuracy may as well be {low:.0%} or {high:.0%} (95 %).")
    return found


def verdict(results: Plain) -> str:
    """Whether something simpler does better, in a sentence."""
    said = {row["row"]: row["what"] for row in results["rows"]}
    better = [said[name] for name in results["simpler_and_better"]]
    if better:
        return f"Something simpler does better on these images: {' and '.join(better)}."
    ahead = [row["what"] for row in results["rows"][1:] if row["difference"] > SMALLEST]
    if ahead:
        verb = "is" if len(ahead) == 1 else "are"
        return f"Nothing simpler does better beyond noise; within it, {' and '.join(ahead)} {verb} ahead."
    return "Nothing simpler does better on these images."


def write_page(out: Path, results: Plain, found: Classification, paths: Sequence[Path]) -> None:
    """Write OUT/report.html. paths: of the validation images, in their order."""
    images, (low, high) = results["images"], results["interval"]
    page = Page(
        f"Tilework start: {Path(results['start']).name}",
        f"{results['accuracy']:.1%} of {images['val']:,} validation images are named right "
        f"(95 % interval {low:.1%} to {high:.1%}), "
        f"{images['classes']} classes, after training on {images['train']:,} images.",
    )
    for doubt in doubts(results):
        page.text(doubt)
    page.heading("Beside simpler things on the same images")
    page.table(*comparison(results))
    page.text(bytes_line(results))
    page.text(verdict(results))
    page.text(
        "The codes and the probe come from an EfficientNet-Lite0 that was trained on ImageNet-1k. One run, one split: "
        "a difference is within noise where the images that only one of the two names right could fall so by chance "
        "(McNemar's test, 95 %)."
    )
    page.heading("The images")
    height, width = images["median_size"]
    page.table(
        ["what", "value"],
        [
            ["images to train on, to validate on", f"{images['train']:,}, {images['val']:,}"],
            ["classes, images of the smallest and largest",
             f"{images['classes']}, {images['smallest_class']:,} and {images['largest_class']:,}"],
            ["median size", f"{width}x{height} px"],
            ["bytes of a file, of its codes with all that the store holds",
             f"{results['original_bytes_per_image']:,.0f}, {results['store_bytes_per_image']:,.0f}"],
        ],
    )  # fmt: skip
    page.heading("Per class")
    counts = found.confusion.sum(1)
    each = zip(results["per_class"].items(), counts.tolist(), strict=True)
    page.table(
        ["class", "images", "accuracy"],
        [[name, f"{count:,}", "-" if share is None else f"{share:.1%}"] for (name, share), count in each],
    )
    page.heading("Confusion")
    page.confusion(found.confusion, found.classes)
    if confused := _confused(found):
        page.table(["true class", "answer", "images"], confused)
    if len(wrong := _mistakes(found)):
        page.heading("Most confident mistakes")
        page.cards([_card(found, i, paths[i]) for i in wrong.tolist()])
    page.heading("Next")
    page.commands(next_commands(out))
    seconds, cpu = (sum(results[name].values()) for name in ("seconds", "cpu_seconds"))
    repeat = join(["tilework", "start", results["start"], "--out", str(out)])
    page.text(f"Repeat: {repeat} ({results['software']}, {seconds:.0f} s, "
              f"{cpu:.0f} s of processors).")  # fmt: skip
    write(out / PAGE, page.html().encode())


def _card(found: Classification, i: int, path: Path) -> Card:
    said, true = int(found.predicted[i]), int(found.labels[i])
    lines = [(f"said: {found.classes[said]} ({found.probabilities[i, said]:.0%})", False),
             (f"true: {found.classes[true]} ({found.probabilities[i, true]:.0%})", True)]  # fmt: skip
    return Card([decode_image(path, (SIDE, SIDE)).transpose(1, 2, 0)], path.name, lines)


def _mistakes(found: Classification) -> np.ndarray:
    """Wrong answers, the surest first."""
    wrong = np.flatnonzero(found.predicted != found.labels)
    return wrong[np.argsort(-found.probabilities[wrong].max(1), kind="stable")[:MISTAKES]]


def _confused(found: Classification) -> list[list[str]]:
    """Pairs of classes that are confused most."""
    counts = found.confusion.copy()
    np.fill_diagonal(counts, 0)
    order = np.argsort(-counts, axis=None, kind="stable")[:PAIRS]
    pairs = [(int(i), int(j)) for i, j in zip(*np.unravel_index(order, counts.shape), strict=True) if counts[i, j]]
    return [[found.classes[i], found.classes[j], f"{counts[i, j]:,}"] for i, j in pairs]
