"""The part of a report about a directory of many runs: a table, a comparison, a frontier."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from tilework.core.config import Plain, to_yaml
from tilework.core.errors import DamageError, InputError
from tilework.core.sealed import read_json
from tilework.experiments import compare, converged, frontier, table, tokenizers
from tilework.report import Page
from tilework.report.plots import Named, colour_of, line_plot
from tilework.report.tokenizer_figures import draw_accuracy_per_byte

RESULTS, SETTINGS = "results.json", "settings.json"


def _none(results: Plain) -> list[Named]:
    return []


def _curves(results: Plain) -> list[Named]:
    """Means of the seeds of every row, by pass."""
    shown = {
        "loss": ("training loss", 1),
        "training": ("right on training images (%)", 100),
        "validation": ("right on validation images (%)", 100),
    }
    found = []
    for key, (title, scale) in shown.items():
        lines = {row["row"]: _mean_curve(results, row, key, scale) for row in results["rows"]}
        if any(lines.values()):
            found.append((line_plot(lines, "passes", title), f"{title}, mean of the seeds".capitalize() + "."))
    return found


def _mean_curve(results: Plain, row: Plain, key: str, scale: float) -> list[tuple[float, float]]:
    runs = [t["curve"] for t in results["trials"] if t["row"] == row["row"] and t["rate"] == row["rate"] and t["curve"]]
    points = []
    for together in zip(*runs, strict=False):
        known = [point[key] for point in together if point.get(key) is not None]
        points += [(together[0]["pass"], scale * mean(known))] if known else []
    return points


def _per_byte(results: Plain) -> list[Named]:
    """Accuracy by bytes of an image."""
    known = [(row, row.get("bytes_per_image") or row.get("bytes")) for row in results["rows"]]
    points = [(str(row["row"]), float(size), row["mean"], row["deviation"] or 0.0) for row, size in known if size]
    return (
        [
            (
                draw_accuracy_per_byte(points, inches=(5.6, 3.9)),
                "Accuracy by bytes per image; the dashed line is the Pareto front.",
            )
        ]
        if points
        else []
    )


def _table_command(results: Plain, state: Plain) -> list[str]:
    rows = [row["line"] for row in results["rows"]]
    words = ["tilework", "table", *rows, "--data", state["data"], "--val", state["val"]]
    for name in ("tokenizer", "adapter", "maps"):
        words += [f"--{name}", state[name]] if state.get(name) else []
    if protocol := state.get("protocol"):
        words += ["--protocol"]
        for name in ("samples", "passes", "held", "seeds"):
            words += [f"--{name}", str(protocol[name])]
        words += ["--rates", *(f"{rate:g}" for rate in protocol["rates"])]
    return [*words, *_settings(state)]


def _rows_command(results: Plain, state: Plain) -> list[str]:
    """Of a frontier or a comparison."""
    seeds = {row["row"]: len(row.get("seeds", ())) for row in results["rows"]}
    rows = [f"{name}@{count}" if count > 1 else name for name, count in seeds.items()]
    images, val = [str(state["images"])], ["--val", state["val"], "--rows", *rows]
    if "teacher" in state:
        return ["tilework", "frontier", *images, *val, "--seeds", str(state["seeds"]), *_settings(state)]
    tokenizers = ["--tokenizer", *["TOKENIZER"] * len(state["tokenizers"])] if state["tokenizers"] else []
    return ["tilework", "compare", *images, *state["settings"], *val, *tokenizers]


def _settings(state: Plain) -> list[str]:
    return ["--settings", *state["settings"]] if state.get("settings") else []


@dataclass(frozen=True)
class Kind:
    """A kind of directory."""

    name: str
    is_it: Callable[[Plain], bool]  # by what results.json holds
    markdown: Callable[[Plain], str]
    plots: Callable[[Plain], list[Named]] = _none
    colours: bool = False  # whether rows have colours in the plots
    command: Callable[[Plain, Plain], list[str]] | None = None  # of the results and settings.json


def _has(key: str) -> Callable[[Plain], bool]:
    return lambda results: any(key in row for row in results["rows"])


KINDS = (
    Kind("converged table", lambda results: "protocol" in results, converged.markdown, _curves, True, _table_command),
    Kind("frontier", _has("front"), frontier.markdown, _per_byte, command=_rows_command),
    Kind("comparison", _has("of_the_files"), compare.markdown, _per_byte, command=_rows_command),
    Kind("comparison of tokenizers", _has("code_usage"), tokenizers.markdown, _per_byte),
    Kind("table", lambda results: "metric" in results, table.markdown, command=_table_command),
)


def add_experiment(page: Page, path: Path) -> list[str]:
    """A table, a comparison or a frontier in its directory; returns its line of the summary."""
    results = _results(path)
    try:
        kind = next((kind for kind in KINDS if "rows" in results and kind.is_it(results)), None)
        if kind is None:
            what = f"{path / RESULTS} is of no table, comparison, frontier or robustness"
            raise InputError(what, "give one of these")
        page.heading(f"{path.name}: {kind.name} of {len(results['rows'])} rows")
        page.markdown(kind.markdown(results), level=3)
        drawn = kind.plots(results)
        page.plots(drawn) if drawn else None
        if kind.colours:
            page.legend(colour_of([row["row"] for row in results["rows"]]))
        _add_command(page, path, kind, results)
        best = max(results["rows"], key=lambda row: row["mean"] if row["mean"] is not None else -1.0)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise DamageError(f"{path / RESULTS} is malformed", f"repeat its command ({error!r})") from error
    size = best.get("bytes_per_image") or best.get("bytes")
    return [
        path.name,
        kind.name,
        f"{best['mean']:.1%} ({best['row']})" if best["mean"] is not None else "",
        f"{size:,.0f}" if size else "",
    ]


def _add_command(page: Page, path: Path, kind: Kind, results: Plain) -> None:
    """The command that makes it again, and its settings."""
    if not (path / SETTINGS).is_file():
        return
    state = read_json(path / SETTINGS)
    if kind.command is not None:
        page.heading("To repeat it", 3)
        page.commands([shlex.join([*kind.command(results, state), "--out", "AGAIN"])])
    page.folded("data and settings", to_yaml(state))


def _results(path: Path) -> Plain:
    if not (path / RESULTS).is_file():
        raise InputError(f"{path} has no {RESULTS}", "wait until its first run has ended, or repeat its command")
    return read_json(path / RESULTS)
