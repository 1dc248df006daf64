"""Figures as PNG bytes.

N pictures | H, W pixels | h, w code grid | K codes or classes | C code dim
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

BLUE, ORANGE, GREEN, RED, GREY = "#2f6db5", "#d9822b", "#2e8b57", "#c23b3b", "#5b6570"
COLOURS = (ORANGE, BLUE, GREEN, RED)


def _png(figure: Figure) -> bytes:
    data = io.BytesIO()
    software = {"Software": "Tilework"}  # by which commands know the pictures that they may replace
    figure.savefig(data, format="png", dpi=110, bbox_inches="tight", facecolor="white", metadata=software)
    return data.getvalue()


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)


def curves(logs: Mapping[str, Sequence[Mapping[str, Any]]], metric: str = "val_top1") -> bytes:
    """Training loss and validation accuracy by step, one colour per run. logs: lines of log.jsonl by run."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for colour, (name, lines) in zip(cycle(COLOURS), logs.items(), strict=False):
        loss = [(line["step"], line["loss"]) for line in lines if "loss" in line]
        accuracy = [(line["step"], 100 * line[metric]) for line in lines if metric in line]
        left.plot(
            *zip(*loss, strict=True), color=colour, label=name, linewidth=1.3, marker="o" if len(loss) < 5 else ""
        )
        if accuracy:
            right.plot(*zip(*accuracy, strict=True), color=colour, label=name, marker="o", markersize=4)
    left.set(title="training loss", xlabel="step")
    right.set(title="validation accuracy", xlabel="step", ylabel="top-1 (%)")
    for axes in (left, right):
        _plain(axes)
    left.legend(frameon=False)
    return _png(figure)


def rows_of_pictures(rows: Mapping[str, np.ndarray]) -> bytes:
    """Images in labelled rows. rows: label to (N, H, W, 3) in [0, 1] or uint8."""
    count = max(len(pictures) for pictures in rows.values())
    figure = Figure(figsize=(1.15 * count + 1.2, 1.2 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), count, squeeze=False)
    for axes, (label, pictures) in zip(grid, rows.items(), strict=True):
        for cell, picture in zip(axes, pictures, strict=False):
            cell.imshow(picture, interpolation="nearest")
        for cell in axes:
            cell.set(xticks=[], yticks=[])
            cell.spines[:].set_visible(False)
        axes[0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=10, labelpad=8)
    return _png(figure)


def heat_pictures(rows: Sequence[tuple[str, np.ndarray, np.ndarray | None, Sequence[str]]]) -> bytes:
    """Heat maps over images, row by row. rows: label, (N, H, W, 3) in [0, 1], (N, h, w) heat or none, captions."""
    count = len(rows[0][1])
    figure = Figure(figsize=(1.5 * count + 1.2, 1.75 * len(rows)), layout="constrained")
    grid, drawn = figure.subplots(len(rows), count, squeeze=False), None
    for axes, (label, pictures, heats, words) in zip(grid, rows, strict=True):
        for i, (cell, picture, word) in enumerate(zip(axes, pictures, words, strict=True)):
            extent = (0, picture.shape[1], picture.shape[0], 0)
            grey = picture if heats is None else picture.mean(-1, keepdims=True).repeat(3, -1)
            cell.imshow(grey, extent=extent)
            if heats is not None:
                drawn = cell.imshow(heats[i], cmap="inferno", alpha=0.55, extent=extent, interpolation="bilinear")
            cell.set(xticks=[], yticks=[])
            cell.set_xlabel(_shorten(word, 20), fontsize=8, color=GREY)
            cell.spines[:].set_visible(False)
        axes[0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=10, labelpad=8)
    if drawn is not None:
        bar = figure.colorbar(drawn, ax=grid, shrink=0.4, ticks=[], pad=0.01)
        bar.set_label("relevance, from low to high", fontsize=8)
        bar.outline.set_visible(False)
    return _png(figure)


def label_maps(rows: Sequence[tuple[str, np.ndarray, Sequence[str]]]) -> bytes:
    """Images and label maps, row by row. rows: label, (N, H, W, 3) in [0, 1] or (N, h, w) shares, captions."""
    count = len(rows[0][1])
    figure = Figure(figsize=(1.35 * count + 1.8, 1.5 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), count, squeeze=False)
    drawn = None
    for axes, (label, pictures, words) in zip(grid, rows, strict=True):
        for i, (cell, picture) in enumerate(zip(axes, pictures, strict=True)):
            image = cell.imshow(picture, cmap="RdBu_r", vmin=0, vmax=1, interpolation="nearest")
            drawn = image if picture.ndim == 2 else drawn
            cell.set(xticks=[], yticks=[])
            cell.spines[:].set_visible(False)
            if words:
                cell.set_xlabel(_shorten(words[i], 20), fontsize=8, color=GREY)
        axes[0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=10, labelpad=8)
    if drawn is not None:
        bar = figure.colorbar(drawn, ax=grid, shrink=0.4, ticks=[0, 0.5, 1], pad=0.01)
        bar.ax.set_yticklabels(["second image", "half", "first image"], fontsize=8)
        bar.outline.set_visible(False)
    return _png(figure)


def ratio_panels(panels: Sequence[tuple[str, Mapping[str, np.ndarray]]]) -> bytes:
    """Shares by layer, a panel for each mixed image. panels: title, and (1 + L,) shares by name, nan if unknown."""
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(2.6 * columns + 0.4, 2.3 * rows + 0.4), layout="constrained")
    cells = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for cell in cells.ravel()[len(panels) :]:
        cell.set_visible(False)
    for cell, (title, lines) in zip(cells.ravel(), panels, strict=False):
        for colour, (name, shares) in zip(COLOURS, lines.items(), strict=False):
            flat = len(set(shares.tolist())) == 1
            cell.plot(shares, color=colour, label=name, linewidth=1.4, linestyle="--" if flat else "-",
                      marker="" if flat else "o", markersize=3.5)  # fmt: skip
        cell.set_title(title, fontsize=9)
        cell.set_ylim(0, 1)
        _plain(cell)
    for row in cells:
        row[0].set_ylabel("share of first image")
    for cell in cells[-1]:
        cell.set_xlabel("block")
        cell.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, names = cells[0][0].get_legend_handles_labels()
    figure.legend(handles, names, frameon=False, loc="outside upper center", ncols=len(names), fontsize=9)
    return _png(figure)


def scatter_panels(panels: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> bytes:
    """Scatter plots side by side, one colour per class. panels: title to (N, 2) points and (N,) labels."""
    figure = Figure(figsize=(3.6 * len(panels), 3.6), layout="constrained")
    for axes, (title, (points, labels)) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        axes.scatter(points[:, 0], points[:, 1], c=np.unique(labels, return_inverse=True)[1], cmap="tab10", s=9)
        axes.set(title=title, xticks=[], yticks=[])
    return _png(figure)


def code_pictures(ids: np.ndarray, codebook: np.ndarray) -> np.ndarray:
    """Code grids in RGB, by the first three principal components of the codebook. ids: (N, h, w); in [0, 1].

    With several codes per position, (N, h, w, C), the first is shown.
    """
    ids = ids[..., 0] if ids.ndim == 4 else ids
    centred = codebook - codebook.mean(0)
    directions = np.linalg.svd(centred, full_matrices=False)[2][:3]
    shade = np.zeros((len(codebook), 3))
    shade[:, : len(directions)] = centred @ directions.T
    low, high = shade.min(0), shade.max(0)
    return ((shade - low) / np.maximum(high - low, 1e-9))[ids]


def captioned_pictures(
    pictures: Sequence[np.ndarray],
    titles: Sequence[str],
    lines: Sequence[Sequence[str]],
    right: Sequence[bool | None],
    heading: str = "",
) -> bytes:
    """A contact sheet. pictures: (H, W, 3) each; lines: below each; right: green, red, or grey where it is unknown."""
    wide = max((picture.shape[1] / picture.shape[0] for picture in pictures), default=1)
    columns = min(3 if wide > 1.5 else 6, len(pictures))
    rows, below = -(-len(pictures) // columns), max(map(len, lines), default=0)
    layout = ConstrainedLayoutEngine(hspace=0.02 + 0.06 * below)
    side = 1.9 * min(2.0, max(1.0, wide))
    figure = Figure(figsize=(side * columns, (2.0 + 0.18 * below) * rows), layout=layout)
    if heading:
        figure.suptitle(heading, fontsize=9, color=GREY)
    cells = figure.subplots(rows, columns, squeeze=False).ravel()
    for cell in cells:
        cell.axis("off")
    for cell, picture, title, said, good in zip(cells, pictures, titles, lines, right, strict=False):
        cell.imshow(picture)
        cell.set_title(_shorten(title[::-1], 24)[::-1], fontsize=8, color=GREY)
        for number, line in enumerate(said):
            colour = GREY if good is None or number else GREEN if good else RED
            cell.text(0.5, -0.04 - 0.12 * number, _shorten(line, 26), color=colour, fontsize=8, ha="center",
                      va="top", transform=cell.transAxes, weight="normal" if number else "bold")  # fmt: skip
    return _png(figure)


def confusion(counts: Mapping[str, np.ndarray], classes: Sequence[str]) -> bytes:
    """Confusion matrices side by side, rows normalised. counts: by model, (K, K)."""
    side = 1.4 + 0.22 * min(len(classes), 30)
    figure = Figure(figsize=(side * len(counts) + 0.6, side), layout="constrained")
    panels = figure.subplots(1, len(counts), squeeze=False)[0]
    for panel, (name, matrix) in zip(panels, counts.items(), strict=True):
        drawn = panel.imshow(matrix / np.maximum(1, matrix.sum(1, keepdims=True)), cmap="Blues", vmin=0, vmax=1)
        panel.set_title(name)
        panel.set_xlabel("predicted")
        if len(classes) <= 30:
            ticks = range(len(classes))
            panel.set_xticks(ticks, [_shorten(c) for c in classes], rotation=90, fontsize=7)
            panel.set_yticks(ticks, [_shorten(c) for c in classes], fontsize=7)
    panels[0].set_ylabel("true")
    figure.colorbar(drawn, ax=panels, label="share of true class", shrink=0.7)
    return _png(figure)


def draw_trade(points: Mapping[str, tuple[float, float]]) -> Figure:
    """Accuracy against storage, log axis. points: by name, (bytes per image, accuracy)."""
    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    axes = figure.subplots()
    for colour, (name, (size, accuracy)) in zip(COLOURS, points.items(), strict=False):
        axes.scatter(size, 100 * accuracy, color=colour, s=70, zorder=3)
        below = accuracy > 0.3  # where there is room
        axes.annotate(f"{name}\n{size:,.0f} B, {accuracy:.1%}", (size, 100 * accuracy), (0, -14 if below else 14),
                      color=colour, textcoords="offset points", ha="center", va="top" if below else "bottom",
                      fontsize=9)  # fmt: skip
    sizes = [size for size, _ in points.values()]
    axes.set_xscale("log")
    axes.xaxis.set_minor_formatter(NullFormatter())  # labels would overlap
    axes.set(xlim=(min(sizes) / 4, max(sizes) * 4), ylim=(0, 105))
    axes.set(xlabel="bytes per training image (log scale)", ylabel="validation accuracy (%)")
    _plain(axes)
    return figure


def storage_accuracy(points: Sequence[tuple[str, float, float, float]]) -> bytes:
    """Accuracy against storage, log axis (SeiT, figure 1). points: (KIND or KIND:VALUE, bytes, accuracy, deviation)."""
    figure = Figure(figsize=(8.2, 4.6), layout="constrained")
    axes = figure.subplots()
    kinds: dict[str, list[tuple[str, float, float, float]]] = {}
    for name, *numbers in points:
        kind, _, value = name.partition(":")
        kinds.setdefault(kind, []).append((value, *numbers))  # type: ignore[arg-type]
    palette = (*COLOURS, "#7d5ba6", "#00868b", "#8c6d31", "#b03a8c", GREY)
    for number, (kind, mine) in enumerate(kinds.items()):
        values, sizes, accuracies, deviations = zip(*sorted(mine, key=lambda p: p[1]), strict=True)
        heights, colour = [100 * a for a in accuracies], palette[number % len(palette)]
        spread = [100 * d for d in deviations] if any(deviations) else None
        line = "o-" if all(values) else "o"  # join only rows that have values
        axes.errorbar(sizes, heights, spread, color=colour, fmt=line, linewidth=1, markersize=7, capsize=3, label=kind)
        for value, size, height in zip(values, sizes, heights, strict=True):
            axes.annotate(value, (size, height), (7, -9), color=colour, textcoords="offset points", ha="left",
                          fontsize=8)  # fmt: skip
    axes.set_xscale("log")
    for set_formatter in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        set_formatter(FuncFormatter(lambda size, _: _bytes(size)))
    axes.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    axes.tick_params(axis="x", which="minor", labelsize=8)
    axes.margins(x=0.08, y=0.12)
    axes.set(xlabel="size of the training set (log scale)", ylabel="validation accuracy (%)")
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    _plain(axes)
    return _png(figure)


def _bytes(size: float) -> str:
    """A size with its unit: 2.6 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def _shorten(name: str, length: int = 14) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"
