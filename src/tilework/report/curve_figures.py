"""Figures of converged tables: curves of every row, and effects beside those of the papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Effect:
    """What a method adds to a row of a converged table, in points of accuracy."""

    group: str
    name: str
    base: str  # the row it is added to
    on: str  # which data, how many images and passes
    ours: float
    half: float  # of the 95 % interval
    paper: float | None  # published difference, if there is one
    pairs: tuple[float, ...]  # seed by seed
    right: float  # training images that the row with the method is right on, in percent

    @property
    def reading(self) -> str:
        """Whether the interval leaves out zero, by less than a fifth of its half or more, and the paper's figure."""
        if abs(self.ours) <= self.half:
            text = f"not resolved ({self.ours - self.half:+.1f} to {self.ours + self.half:+.1f})"
        else:
            edge = ", at the edge" if abs(self.ours) < 1.2 * self.half else ""
            text = f"{'seen' if self.ours > 0 else 'costs'}{edge}"
        outside = self.paper is not None and abs(self.paper - self.ours) > self.half
        return f"{text}; paper outside" if outside else text


def effect_chart(effects: Sequence[Effect]) -> bytes:
    """Effects with 95 % intervals, filled where they leave out zero, and those of the papers; groups are contiguous."""
    groups = list(dict.fromkeys(one.group for one in effects))
    rows = [i + groups.index(one.group) + 1 for i, one in enumerate(effects)]  # below the name of its group
    figure = Figure(figsize=(9, 0.8 + 0.235 * (len(effects) + len(groups))), layout="constrained")
    axes = figure.subplots()
    for y, one in zip(rows, effects, strict=True):
        seen = abs(one.ours) > one.half
        axes.errorbar(one.ours, y, xerr=one.half, fmt="none", color=BLUE, capsize=2, alpha=1.0 if seen else 0.5)
        axes.plot(one.ours, y, "o", color=BLUE, markerfacecolor=BLUE if seen else "white", markersize=6)
        axes.text(1.01, y, f"{one.ours:+.1f}", transform=axes.get_yaxis_transform(), va="center", fontsize=8)
        if one.paper is not None:
            axes.plot(one.paper, y, "D", color=ORANGE, markersize=5)
    for group in groups:
        y = min(y for y, one in zip(rows, effects, strict=True) if one.group == group) - 1
        axes.text(-0.02, y, group, transform=axes.get_yaxis_transform(), va="center", ha="right", weight="bold")
    for colour, mark, inside, label in (
        (BLUE, "o", BLUE, "ours: the 95 % interval leaves out zero"),
        (BLUE, "o", "white", "ours: it does not"),
        (ORANGE, "D", ORANGE, "paper (ImageNet or ImageNet-100, its own network)"),
    ):
        axes.plot([], [], mark, color=colour, markerfacecolor=inside, label=label)
    axes.axvline(0, color="0.6", linewidth=0.8)
    labels = [f"{one.name} against {one.base}  ({one.on})" for one in effects]
    axes.set(yticks=rows, yticklabels=labels, xlabel="difference in points of accuracy")
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.set_ylim(len(effects) + len(groups) - 0.3, -0.7)
    figure.legend(frameon=False, fontsize=8, loc="outside lower center", ncols=3)
    _plain(axes)
    return _png(figure)
