"""What pages show of a segmentation: figures, classes, confusion, masks beside their photographs.

N images | K classes | h, w pixels
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilework.data.pairs import coloured, palette
from tilework.report import Card, Page
from tilework.runs.segment import Segmentation

SIDE = 320  # pixels of the longer side of a picture, about
FIGURES = {
    "miou": "mIoU",
    "macc": "mean accuracy of classes",
    "aacc": "accuracy of pixels",
    "miou_frequent": "mIoU of classes above 4 %",
}
Shown = tuple[str, np.ndarray | None, np.ndarray, np.ndarray]  # name, photograph, true and predicted mask


def add_figures(page: Page, found: Segmentation, classes: Sequence[str], level: int = 2) -> None:
    """Headline figures, IoU of each class and the confusion of pixels. level: of the headings."""
    figures = [(FIGURES.get(name, name), f"{value:.1%}") for name, value in found.figures.items()]
    page.tiles([*figures, ("images", f"{found.images:,}"), ("classes", f"{len(classes):,}")])
    page.heading("IoU of each class", level)
    true = found.by_image[:, 1].sum(0)
    rows = [
        [name, "-" if value != value else f"{100 * value:.1f}", f"{100 * share:.1f}"]
        for name, value, share in zip(classes, found.by_class, true / max(1, true.sum()), strict=True)
    ]
    page.table(["class", "IoU (%)", "of the pixels (%)"], rows, [None if v != v else v for v in found.by_class])
    page.heading("Confusion of pixels", level)
    page.text("In thousandths of the pixels of the true class.")
    counts = found.confusion
    page.confusion((1000 * counts / np.maximum(1, counts.sum(1, keepdims=True))).round().astype(np.int64), classes)


def add_masks(page: Page, samples: Sequence[tuple[Shown, str]], classes: Sequence[str]) -> None:
    """Photographs, true and predicted masks, each with a line below, and what the colours stand for."""
    cards = []
    for (name, photograph, true, predicted), line in samples:
        masks = [coloured(true, len(classes)), coloured(predicted, len(classes))]
        pictures = masks if photograph is None else [photograph, *masks]
        cards.append(Card([_smaller(picture) for picture in pictures], name, [(line, None)] if line else []))
    page.cards(cards)
    page.text("Photograph (where there is one), true mask, predicted mask; black is void.")
    page.legend({name: "#" + bytes(c).hex() for name, c in zip(classes, palette(len(classes)), strict=True)})


def _smaller(picture: np.ndarray) -> np.ndarray:
    """Every so many pixels of a picture, so that a page stays small."""
    step = max(1, max(picture.shape[:2]) // SIDE)
    return np.ascontiguousarray(picture[::step, ::step].astype(np.uint8))
