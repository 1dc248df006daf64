"""Figures that compare tokenizers, as PNG bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from tilework.report.figures import BLUE, GREEN, GREY, ORANGE, RED, _bytes, _plain, _png

PALETTE = (BLUE, ORANGE, GREEN, RED, "#7d5ba6", "#00868b", "#8c6d31", "#b03a8c")
SIDES = (  # offsets of a label from its point, in points right and up, and alignment; the best first
    (9, 0, "left"),
    (-9, 0, "right"),
    (9, -11, "left"),
    (-9, 11, "right"),
    (9, 11, "left"),
    (-9, -11, "right"),
    (0, 15, "center"),
    (0, -16, "center"),
    (0, 26, "center"),
    (0, -28, "center"),
)


def accuracy_per_byte(points: Sequence[tuple[str, float, float, float]], steps: int = 0, title: str = "") -> bytes:
    """Accuracy against stored bytes per image, log axis. points: (name, bytes, accuracy, deviation).

    A line joins the Pareto front.
    """
    said = title or f"Accuracy by storage of each tokenizer: the same classifier, {steps:,} steps"
    return _png(draw_accuracy_per_byte(points, said))


def draw_accuracy_per_byte(
    points: Sequence[tuple[str, float, float, float]], title: str = "", inches: tuple[float, float] = (8.6, 5.0)
) -> Figure:
    """The same as a figure."""
    figure = Figure(figsize=inches, layout="constrained")
    axes = figure.subplots()
    best, front = float("-inf"), []
    for _, size, accuracy, _ in sorted(points, key=lambda p: (p[1], -p[2])):
        if accuracy > best:
            best = accuracy
            front.append((size, 100 * accuracy))
    axes.plot(*zip(*front, strict=True), color=GREY, linestyle="--", linewidth=1, zorder=1, label="Pareto front")
    for number, (_, size, accuracy, deviation) in enumerate(points):
        colour = PALETTE[number % len(PALETTE)]
        spread = 100 * deviation if deviation else None
        axes.errorbar(size, 100 * accuracy, spread, fmt="o", color=colour, markersize=8, capsize=3, zorder=3)
    axes.set_xscale("log")
    axes.margins(x=0.18, y=0.18)
    for set_formatter in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        set_formatter(FuncFormatter(lambda size, _: _bytes(size)))
    axes.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    axes.tick_params(axis="x", which="minor", labelsize=8)
    axes.set(
        xlabel="stored bytes per training image (log scale)",
        ylabel="validation accuracy (%)",
        title=title,
    )
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    _plain(axes)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]  # positions are final from here on
    renderer = canvas.get_renderer()  # type: ignore[no-untyped-call]
    taken: list[tuple[float, ...]] = []
    for _, size, accuracy, deviation in points:
        x, low = axes.transData.transform((size, 100 * (accuracy - deviation)))
        high = axes.transData.transform((size, 100 * (accuracy + deviation)))[1]
        taken.append((x - 6, min(low, high) - 6, x + 6, max(low, high) + 6))
    ends = axes.transData.transform(front)
    line = [a + (b - a) * t / 50 for a, b in pairwise(ends) for t in range(51)]
    frame = axes.get_window_extent(renderer)
    for number, (name, size, accuracy, _) in enumerate(points):
        colour, tries = PALETTE[number % len(PALETTE)], []
        for rank, (right, up, side) in enumerate(SIDES):
            label = axes.annotate(
                name, (size, 100 * accuracy), (right, up), textcoords="offset points", ha=side, va="center",
                color=colour, fontsize=9,
            )  # fmt: skip
            label.set_in_layout(False)
            box = label.get_window_extent(renderer).extents
            outside = box[0] < frame.x0 or box[2] > frame.x1 or box[1] < frame.y0 or box[3] > frame.y1
            clashes = sum(_overlap(box, other) for other in taken)
            crossed = any(box[0] < x < box[2] and box[1] < y < box[3] for x, y in line)
            tries.append((clashes + outside + 0.5 * crossed, rank, label, tuple(box)))
        tries.sort(key=lambda one: one[:2])
        for _, _, label, _ in tries[1:]:
            label.remove()
        taken.append(tries[0][3])
    return figure


def _overlap(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether two boxes (left, low, right, high) touch."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
