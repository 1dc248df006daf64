"""Figures of converged tables: curves of every row, and effects beside those of the papers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from matplotlib import colormaps
from matplotlib.figure import Figure

from tilework.core.config import Plain
from tilework.report.figures import BLUE, ORANGE, _plain, _png


def curve_figure(results: Plain) -> bytes:
    """Training loss, training and validation figures against passes; each line is the mean of a row's seeds.

    results: of a converged table.
    """
    figure = Figure(figsize=(12, 4), layout="constrained")
    panels = figure.subplots(1, 3)
    figure_of = {"top1": "right", "miou": "mIoU"}.get(results["metric"], results["metric"])
    shown = {
        "loss": "training loss",
        "training": f"{figure_of} on training images (%)",
        "validation": f"{figure_of} on validation images (%)",
    }
    for number, row in enumerate(results["rows"]):
        runs = [
            t["curve"] for t in results["trials"] if t["row"] == row["row"] and t["rate"] == row["rate"] and t["curve"]
        ]
        if not runs:
            continue
        passes = [point["pass"] for point in min(runs, key=len)]
        for axes, key in zip(panels, shown, strict=True):
            points = [[run[i].get(key) for run in runs] for i in range(len(passes))]
            scale = 1 if key == "loss" else 100
            values = [
                scale * mean(known) if (known := [p for p in point if p is not None]) else None for point in points
            ]
            axes.plot(passes, values, marker=".", color=colormaps["tab10"](number % 10), label=row["row"])
    for axes, title in zip(panels, shown.values(), strict=True):
        axes.set(title=title, xlabel="passes")
        _plain(axes)
    if panels[0].lines:
        panels[0].legend(frameon=False, fontsize=8)
    return _png(figure)


def effect_chart(effects: Sequence[tuple[str, float | None, float, float]]) -> bytes:
    """What each method adds, in points: the paper's and ours with its 95 % interval.

    effects: name, published difference (None: the paper has none), ours, half of the interval.
    """
    figure = Figure(figsize=(8, 0.9 + 0.36 * len(effects)), layout="constrained")
    axes = figure.subplots()
    rows, found = range(len(effects)), [ours for *_, ours, _ in effects]
    axes.errorbar(found, rows, xerr=[half for *_, half in effects], fmt="none", color=BLUE, capsize=3)
    axes.plot(found, rows, "o", color=BLUE, label="ours, 95 % interval")
    if published := [(paper, y) for y, (_, paper, *_) in enumerate(effects) if paper is not None]:
        axes.plot(*zip(*published, strict=True), "D", color=ORANGE, label="paper (ImageNet, its own network)")
    axes.axvline(0, color="0.6", linewidth=0.8)
    axes.set(yticks=range(len(effects)), yticklabels=[name for name, *_ in effects], xlabel="points of accuracy")
    axes.invert_yaxis()
    figure.legend(frameon=False, fontsize=8, loc="outside lower center", ncols=2)
    _plain(axes)
    return _png(figure)
