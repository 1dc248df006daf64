"""Curves of accuracy against the size of a change (SeiT, figure B.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tilework.report.figures import _plain, _png


def accuracy_curves(
    runs: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], unit: str, scale: float = 1.0
) -> bytes:
    """A panel for each run, a line for each attack. runs: name to lines of (size, accuracy); 'worst' lies below all."""
    columns = 2 if len(runs) == 4 else min(3, len(runs))
    rows = -(-len(runs) // columns)
    figure = Figure(figsize=(4.4 * columns + 1.6, 3.4 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    names = list(dict.fromkeys(line for lines in runs.values() for line in lines))
    colours = colormaps["tab20"]
    whole = all(round(x * scale, 6).is_integer() for lines in runs.values() for line in lines.values() for x, _ in line)
    for panel in panels[len(runs) :]:
        panel.set_visible(False)
    for panel, (title, lines) in zip(panels, runs.items(), strict=False):
        for name, points in lines.items():
            xs, ys = zip(*sorted(points), strict=True)
            worst = name == "worst"
            colour, thick = ("0.75", 6) if worst else (colours(names.index(name) % 20), 1.1)
            sizes, heights = [x * scale for x in xs], [100 * y for y in ys]
            marker, layer = (None, 1) if worst else ("o", 2)
            panel.plot(
                sizes, heights, marker=marker, markersize=3, label=name, color=colour, linewidth=thick, zorder=layer
            )
        panel.set_title(title, fontsize=10)
        panel.set_ylim(0, 100)
        panel.set_xlabel(unit)
        panel.xaxis.set_major_locator(MaxNLocator("auto", integer=whole))
        _plain(panel)
    panels[0].set_ylabel("accuracy (%)")
    handles = {
        label: handle
        for panel in panels[: len(runs)]
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(handles.values()), list(handles), frameon=False, fontsize=8, loc="outside right center")
    return _png(figure)
