"""The part of a report about robustness: its tables and curves."""

from __future__ import annotations

import shlex
from pathlib import Path

from tilework.analysis.robustness.cells import show_eps
from tilework.analysis.robustness.report import RESULTS, attack_curves, code_curves, corruption_curves, markdown
from tilework.core.config import Plain, to_yaml
from tilework.core.errors import DamageError
from tilework.core.sealed import read_json
from tilework.report import Page
from tilework.report.plots import colour_of, line_plot


def is_robustness(results: Plain) -> bool:
    """Whether results.json is of `tilework robustness`."""
    return {"runs", "differences", "settings"} <= results.keys()


def _command(settings: Plain, runs: Plain) -> str:
    """That measures the same again; runs are named as on the page."""
    some = next(iter(runs.values()))
    words = ["tilework", "robustness", *runs, "--data", settings["data"], "--count", settings["images"]]
    words += ["--seed", settings["seed"]]
    if "corruptions" in some:
        words += ["--corruptions", *some["corruptions"], "--severities", *settings["severities"]]
    attacks = [row.split()[0] for run in runs.values() for row in run.get("attacks", {})]
    if attacks:
        words += ["--attack", *dict.fromkeys(attacks), "--norm", settings["norm"], "--steps", settings["steps"]]
        words += ["--eps", *(show_eps(eps, settings["norm"]) for eps in settings["eps"])]
        words += ["--attack-count", settings["attacked"]]
    if swapped := next((list(run["codes"]["any"]) for run in runs.values() if "codes" in run), []):
        words += ["--codes", *swapped]
    return shlex.join([*map(str, words), "--out", "AGAIN"])


def add_robustness(page: Page, path: Path) -> list[str]:
    """Tables and curves of a directory; returns its line of the summary."""
    results = read_json(path / RESULTS)
    try:
        settings, runs = results["settings"], results["runs"]
        page.heading(f"{path.name}: robustness of {len(runs)} runs")
        page.markdown(markdown(results).split("\n", 1)[1], level=3)
        unit, scale = ("eps (1/255)", 255.0) if settings["norm"] == "linf" else ("eps (L2)", 1.0)
        kinds = [(corruption_curves(runs), "severity", 1.0), (attack_curves(runs), unit, scale)]
        for curves, x, factor in [*kinds, (code_curves(runs), "codes swapped", 1.0)]:
            drawn = {
                run: {
                    name: [(size * factor, 100 * share) for size, share in sorted(points)]
                    for name, points in lines.items()
                }
                for run, lines in curves.items()
            }
            if drawn:
                colours = colour_of(list(dict.fromkeys(name for lines in drawn.values() for name in lines)))
                plots = {
                    run: line_plot(lines, x, "accuracy (%)", None, (0, 100), colours) for run, lines in drawn.items()
                }
                page.plots([(plot, run) for run, plot in plots.items()])
                page.legend(colours)
        page.heading("To repeat it", 3)
        page.commands([_command(settings, runs)])
        page.folded("data and settings", to_yaml(settings))
        best = max(runs.items(), key=lambda run: run[1]["clean"]["accuracy"])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, StopIteration) as error:
        raise DamageError(f"{path / RESULTS} is malformed", f"repeat its command ({error!r})") from error
    return [path.name, f"robustness of {len(runs)} runs", f"{best[1]['clean']['accuracy']:.1%} clean ({best[0]})", ""]
