"""Plots of pages: small panels that are read at their own size on any screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tilework.report.figures import BLUE, GREEN, GREY, ORANGE, RED, _plain

PANEL = (3.75, 2.6)  # inches
TEXT = 8.5  # points
PALETTE = (BLUE, ORANGE, GREEN, RED, "#8a63b8", "#1a9aa0", "#a8842f", "#c4509f", GREY)
Points = Sequence[tuple[float, float]]
Named = tuple[Figure, str]  # a plot and its caption


def colour_of(names: Sequence[str]) -> dict[str, str]:
    """A colour for each name, in their order; they come again after nine."""
    return {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}


def line_plot(
    lines: Mapping[str, Points],
    x: str,
    y: str,
    marked: tuple[float, float] | None = None,
    limits: tuple[float, float] | None = None,
    colours: Mapping[str, str] | None = None,
) -> Figure:
    """Lines by name. marked: a point in a ring; limits: of the upright axis; colours: as other plots have them."""
    figure, axes = _panel(x, y)
    colours = colours or colour_of(list(lines))
    for name, points in lines.items():
        if points:
            marker = "o" if len(points) <= 30 else ""
            axes.plot(*zip(*points, strict=True), color=colours[name], linewidth=1.4, marker=marker, markersize=3)
    if marked is not None:
        axes.plot(*marked, marker="o", markersize=9, markerfacecolor="none", color=GREY)
    if limits is not None:
        axes.set_ylim(*limits)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    return figure


def bar_plot(heights: Sequence[float], x: str, y: str, log: bool = False) -> Figure:
    """Heights side by side without gaps, as of a histogram."""
    figure, axes = _panel(x, y)
    axes.fill_between(range(len(heights) + 1), [*heights, heights[-1]], step="post", color=BLUE, linewidth=0)
    if log:
        axes.set_yscale("log")
    axes.set_xlim(0, len(heights))
    return figure


def run_plots(
    log: Sequence[Mapping[str, Any]], metric: str, higher_is_better: bool = True, name: str = ""
) -> list[Named]:
    """Training loss and the validation figure of a run by step. log: its lines; name: of the figure."""
    found: list[Named] = []
    loss = [(line["step"], line["loss"]) for line in log if "loss" in line]
    if len(loss) > 1:
        found.append((line_plot({"loss": loss}, "step", "training loss"), "Training loss."))
    shares = metric != "loss" and all(0 <= line[f"val_{metric}"] <= 1 for line in log if f"val_{metric}" in line)
    scale, unit = (100, " (%)") if shares else (1, "")
    seen = [(line["step"], scale * line[f"val_{metric}"]) for line in log if f"val_{metric}" in line]
    if len(seen) > 1:
        best = (max if higher_is_better else min)(seen, key=lambda point: point[1])
        drawn = line_plot({metric: seen}, "step", f"validation: {name or metric}{unit}", best)
        found.append((drawn, f"Validation data; the ring is the best, {best[1]:.4g} after step {best[0]:,}."))
    return found


def _panel(x: str, y: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=PANEL, layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x, fontsize=TEXT)
    axes.set_ylabel(y, fontsize=TEXT)
    axes.tick_params(labelsize=TEXT)
    _plain(axes)
    return figure, axes
