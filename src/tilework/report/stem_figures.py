"""Figures of stems (Good tokenizers, figures 2 and 5).

N pictures | H, W pixels | n entities
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from tilework.report.figures import BLUE, ORANGE, _plain, _png


def stem_bars(rows: Mapping[str, tuple[float, float]]) -> bytes:
    """Bar charts of reconstruction error and token similarity. rows: name to both."""
    figure = Figure(figsize=(9, 0.9 + 0.34 * len(rows)), layout="constrained")
    titles = ("reconstruction error (MSE)", "token similarity (cosine)")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, title, colour, values in zip(
        panels, titles, (BLUE, ORANGE), zip(*rows.values(), strict=True), strict=True
    ):
        axes.barh(list(rows), values, color=colour, height=0.6)
        axes.set(title=title)
        _plain(axes)
    panels[0].invert_yaxis()  # the axis is shared
    return _png(figure)


def layout_pictures(layout: np.ndarray) -> np.ndarray:
    """Each position in the colour of its strongest entity. layout: (N, n, H, W); returns (N, H, W, 3) in [0, 1]."""
    return np.asarray(colormaps["tab10" if layout.shape[1] <= 10 else "tab20"](layout.argmax(1)))[..., :3]
