"""Pictures of masks.

h, w pixels | K classes
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tilework.data.pairs import palette
from tilework.report.figures import GREY, _png, _shorten

MOST_NAMES = 40  # in the legend

Row = tuple[str, np.ndarray | None, np.ndarray, np.ndarray]  # name, photograph, true and predicted mask in colours


def masks_figure(rows: Sequence[Row], classes: Sequence[str]) -> bytes:
    """Photograph, true and predicted mask beside each other, image by image, and the colours of the classes."""
    columns = 3 if any(photograph is not None for _, photograph, *_ in rows) else 2
    figure = Figure(figsize=(3.0 * columns + 1.6, 2.3 * len(rows)), layout="constrained")
    cells = figure.subplots(len(rows), columns, squeeze=False)
    for axes, (name, photograph, true, predicted) in zip(cells, rows, strict=True):
        shown = [true, predicted] if columns == 2 else [photograph, true, predicted]
        for cell, picture in zip(axes, shown, strict=True):
            cell.set(xticks=[], yticks=[])
            cell.spines[:].set_visible(False)
            if picture is not None:
                cell.imshow(picture, interpolation="nearest")
        axes[0].set_xlabel(_shorten(name, 32), fontsize=8, color=GREY)
    for cell, title in zip(cells[0], ("image", "true", "predicted")[-columns:], strict=True):
        cell.set_title(title, fontsize=9)
    _legend(figure, classes)
    return _png(figure)


def _legend(figure: Figure, classes: Sequence[str]) -> None:
    colours = palette(len(classes)) / 255
    patches = [
        Patch(color=tuple(colour), label=_shorten(name))
        for name, colour in zip(classes[:MOST_NAMES], colours, strict=False)
    ]
    figure.legend(handles=patches, loc="outside right upper", frameon=False, fontsize=8)
