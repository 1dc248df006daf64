"""Tables and figures of robustness: what was measured, the worst case, and the signs of masked gradients.

N images | A images that are attacked
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import sqrt
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from safetensors.numpy import save

from tilework.analysis.robustness.cells import Cell, Subject, show_eps
from tilework.analysis.robustness.code_attacks import NEAR
from tilework.core.config import Plain
from tilework.core.files import write, write_json
from tilework.evaluation.corruptions import ALEXNET, SIDE, mean_corruption_error
from tilework.evaluation.mcnemar import mcnemar
from tilework.report import rows_of_pictures
from tilework.report.robustness_figures import accuracy_curves

if TYPE_CHECKING:
    from tilework.analysis.robustness.job import Robustness

LOOKS = {"psnr": ".1f", "lpips": ".3f"}  # how far decoded images are from those before, and how it is written
T = TypeVar("T")
Curves = dict[str, dict[str, list[tuple[float, float]]]]
SWAPS = {  # kinds of swapped codes, as people read them
    "any": "greedy, any code",
    "near": f"greedy, {NEAR} nearest",
    "random": "random, any code",
    "random-near": f"random, {NEAR} nearest",
}
RESULTS, TABLE, HITS = "results.json", "table.md", "hits.safetensors"
CODES_NOTE = (
    "Swapped codes are no threat to pixels: storage and transport must be protected, and the store's checksums detect "
    "accident, not intent."
)


def write_report(job: Robustness) -> Plain:
    """results.json, table.md, hits.safetensors and figures of all cells of a job; returns the results."""
    runs = {subject.name: _results(job, subject) for subject in job.subjects}
    height, width = job.pixels.shape[2:]
    settings = {
        "data": str(job.data), "images": len(job.pixels), "attacked": len(job.attacked), "size": [height, width],
        "seed": job.seed, "norm": job.norm, "eps": list(job.eps), "steps": job.steps, "queries": job.queries,
        "restarts": job.restarts, "targets": job.targets,
        "lengths": "as published" if job.native else f"times {min(height, width) / SIDE:.3g} (made for {SIDE} px)",
        "severities": list(job.severities),
    }  # fmt: skip
    results = {"settings": settings, "runs": runs, "differences": _differences(job)}
    hits = {
        f"{subject.name}/{name}": cell.hits for subject in job.subjects for name, cell in _cells(job, subject).items()
    }
    write(job.out / HITS, save({name: np.packbits(value) for name, value in hits.items()}))
    write_json(job.out / RESULTS, results)
    write(job.out / TABLE, markdown(results).encode())
    _figures(job, runs)
    return results


def _cells(job: Robustness, subject: Subject) -> dict[str, Cell]:
    """All cells of a run that this job asks for and that are known."""
    names = [name for name, _ in job.changed()]
    names += [f"shift-{re.sub(r'[^A-Za-z0-9_.+-]+', '-', name)}" for name, _ in job.shifts]
    found = {name: subject.cell(name) for name in names}
    return {name: cell for name, cell in found.items() if cell is not None}


def _attack_rows(job: Robustness, subject: Subject) -> dict[str, dict[float, Cell]]:
    """Cells of each attack by radius."""
    rows = [(row, attack) for row, attack, _ in job.on_pixels.rows_of(subject)]
    rows += [(name, "apgd-ce") for name in _transfers(job)]
    found: dict[str, dict[float, Cell]] = {}
    for row, attack in rows:
        cells = {eps: subject.cell(job.on_pixels.cell_name(row, attack, eps)) for eps in job.eps}
        if known := {eps: cell for eps, cell in cells.items() if cell is not None}:
            found[row] = known
    return found


def _transfers(job: Robustness) -> list[str]:
    from tilework.runs.trained import Trained

    return ["transfer from " + Trained.open(job.transfer).name] if job.transfer and "transfer" in job.attacks else []


def _results(job: Robustness, subject: Subject) -> Plain:
    cells = _cells(job, subject)
    clean = cells["clean"]
    out: Plain = {"tokens": subject.ask.codes is not None, "clean": clean.figures}
    by_kind: dict[str, dict[int, Plain]] = {}
    for name in job.corruptions:
        by_kind[name] = {s: cells[f"corruption-{name}-{s}"].figures for s in job.severities}
    if by_kind:
        means = {name: mean(cell["accuracy"] for cell in kinds.values()) for name, kinds in by_kind.items()}
        out["corruptions"] = {name: {str(s): cell for s, cell in kinds.items()} for name, kinds in by_kind.items()}
        out["corruption_means"] = means
        counted = [name for name in means if name in ALEXNET] or list(means)
        out["mean_accuracy"] = mean(means[name] for name in counted)
        out["mean_over"] = counted
        out["relative_drop"] = _drop(clean.accuracy, out["mean_accuracy"])
        if len(subject.classes) == 1000 and set(job.pixels.shape[2:]) == {SIDE} and set(ALEXNET) <= set(means):
            out["mce"] = mean_corruption_error({name: 1 - value for name, value in means.items()})
    out["proxies"] = {name[6:]: cell.figures for name, cell in cells.items() if name.startswith("proxy-")}
    out["shifts"] = {name[6:]: cell.figures for name, cell in cells.items() if name.startswith("shift-")}
    rows = _attack_rows(job, subject)
    if rows or job.codes:
        out["attacked_clean"] = float(clean.hits[job.attacked.numpy()].mean())
    if rows:
        out["attacks"] = {
            row: {f"{eps:.8g}": cell.figures for eps, cell in known.items()} for row, known in rows.items()
        }
        out["worst"] = {}
        for eps in job.eps:
            known = [cells_[eps].hits for cells_ in rows.values() if eps in cells_]
            out["worst"][f"{eps:.8g}"] = float(np.logical_and.reduce(known).mean()) if known else None
        out["checks"] = _checks(job, subject, rows)
    kinds = {
        kind: {n: subject.cell(f"codes-{kind}-{n}") for n in job.codes}
        for kind in ("any", "near", "random", "random-near")
    }
    swapped = {kind: {str(n): c.figures for n, c in known.items() if c is not None} for kind, known in kinds.items()}
    if any(swapped.values()):
        out["codes"] = swapped
    return out


def _drop(clean: float, robust: float) -> float:
    return (clean - robust) / clean if clean else 0.0


def _checks(job: Robustness, subject: Subject, rows: dict[str, dict[float, Cell]]) -> list[Plain]:
    """Signs of masked gradients, each with what it saw: passed, or a sentence that says what fired."""
    found: list[Plain] = []

    def add(row: str, name: str, passed: bool, seen: str) -> None:
        found.append({"row": row, "check": name, "passed": passed, "seen": seen})

    random, blind = rows.get("random", {}), {r: c for r, c in rows.items() if r == "square" or r.startswith("transfer")}
    for row, cells in rows.items():
        first = next(iter(cells.values())).figures
        gradient = first.get("gradient")
        if gradient is None:
            continue
        zero = max(cell.figures["zero_gradient"] or 0.0 for cell in cells.values())
        add(row, "gradients are not zero", zero < 0.01, f"{zero:.1%} of images have none")
        both = [eps for eps in cells if eps in random]
        if both:
            worse = [eps for eps in both if random[eps].accuracy < cells[eps].accuracy]
            add(row, "random signs are not stronger", not worse, _at(worse, random, cells, job))
        for name, others in blind.items():
            worse = [eps for eps in cells if eps in others and others[eps].accuracy < cells[eps].accuracy]
            add(row, f"{name} is not stronger", not worse, _at(worse, others, cells, job))
        moved = [(eps, cells[eps].figures["codes_changed"], random[eps].figures["codes_changed"]) for eps in both]
        if moved and moved[0][1] is not None and moved[0][2] is not None:
            fewer = [eps for eps, own, other in moved if own is not None and other is not None and own <= other]
            seen = ", ".join(
                f"{show_eps(e, job.norm)}: {o:.1%} against {r:.1%}"
                for e, o, r in moved
                if o is not None and r is not None
            )
            add(row, "it moves more codes than random signs", not fewer, seen)
        if row.startswith("apgd-ce") and gradient != "unquantised":
            middle, few = job.eps[len(job.eps) // 2], max(1, job.steps // 4)
            whole = subject.cell(f"check-whole-{gradient}-s{job.steps}-{job.norm}-255")
            if whole is not None:
                add(
                    row,
                    "eps 255/255 leaves none",
                    whole.accuracy == 0,
                    f"{whole.accuracy:.1%} of {len(whole.hits)} stand",
                )
            less, all_ = (
                subject.cell(f"check-{kind}-{gradient}-s{n}-{job.norm}-{middle * 255:.4g}")
                for kind, n in (("fewer", few), ("all", job.steps))
            )
            if less is not None and all_ is not None:
                seen = f"{few} steps {less.accuracy:.1%}, {job.steps} steps {all_.accuracy:.1%}"
                seen += f" at {show_eps(middle, job.norm)}"
                add(row, "more steps are not weaker", all_.accuracy <= less.accuracy, seen)
    return found


def _at(worse: list[float], others: dict[float, Cell], own: dict[float, Cell], job: Robustness) -> str:
    if not worse:
        return "at no radius"
    return ", ".join(f"{show_eps(e, job.norm)}: {others[e].accuracy:.1%} against {own[e].accuracy:.1%}" for e in worse)


def _differences(job: Robustness) -> Plain:
    """Each run against the first, paired by image: clean, and the mean over corruptions with its standard error."""
    first = _cells(job, job.subjects[0])
    names = [name for name in first if name.startswith("corruption-")]
    out: Plain = {}
    for subject in job.subjects[1:]:
        own = _cells(job, subject)
        if len(own["clean"].hits) != len(first["clean"].hits):
            continue
        row: Plain = {
            "clean": own["clean"].accuracy - first["clean"].accuracy,
            "clean_p": mcnemar(own["clean"].hits, first["clean"].hits),
        }
        if names and all(name in own for name in names):
            each = np.mean([own[n].hits.astype(float) - first[n].hits.astype(float) for n in names], 0)  # (N,)
            row |= {"corruptions": float(each.mean()), "corruptions_error": float(each.std(ddof=1) / sqrt(len(each)))}
        out[subject.name] = row
    return out


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [_line(head), _line(["---"] + ["---:"] * (len(head) - 1)), *map(_line, rows), ""]


def _groups(runs: Mapping[str, T]) -> dict[str, list[T]]:
    """Runs that differ by their seed, as 'ROW seed-N' or 'ROW seed-N-rate-R' of a table."""
    groups: dict[str, list[T]] = {}
    for name, run in runs.items():
        groups.setdefault(re.sub(r" seed-\d+(-rate-\S+)?$", "", name), []).append(run)
    return groups


def _over(group: list[Plain], *keys: str, decimals: int = 1) -> str:
    """Mean and deviation over the seeds of a row, in percent. keys: the way to the number in a run's results."""
    return _spread([_at_keys(run, keys) for run in group], decimals)


def _at_keys(run: Plain, keys: tuple[str, ...]) -> Any:
    for key in keys:
        run = run.get(key)  # type: ignore[assignment]
        if run is None:
            return None
    return run


def _spread(numbers: list[Any], decimals: int = 1) -> str:
    if any(number is None for number in numbers):
        return ""
    spread = f" ± {100 * stdev(numbers):.{decimals}f}" if len(numbers) > 1 else ""
    return f"{100 * mean(numbers):.{decimals}f}{spread}"


def markdown(results: Plain) -> str:
    """The tables as text."""
    settings, runs = results["settings"], results["runs"]
    groups, some = _groups(runs), next(iter(runs.values()))
    height, width = settings["size"]
    said = f"{settings['images']} images of {settings['data']} at {height}x{width} px, seed {settings['seed']}."
    lines = ["# Robustness", "", f"{said} Accuracy in percent; rows of several seeds: mean ± standard deviation.", ""]
    if "corruptions" in some:
        lines += _corruption_tables(settings, groups, some)
    else:
        rows = [[name, _over(g, "clean", "accuracy"), _over(g, "clean", "ece")] for name, g in groups.items()]
        lines += _table(["run", "clean", "ECE"], rows)
    if some["proxies"]:
        lines += ["## Restylings: proxies, not ImageNet-R or Sketch", ""]
        lines += _by_name(groups, "run", "proxies", "accuracy", list(some["proxies"]))
    if some["shifts"]:
        lines += ["## Shifted data sets", ""]
        lines += _by_name(groups, "among the classes of the data", "shifts", "accuracy", list(some["shifts"]))
        lines += _by_name(groups, "among all classes of the model", "shifts", "over_all_classes", list(some["shifts"]))
        lines += _by_name(groups, "codes that training had not kept", "shifts", "unseen_codes", list(some["shifts"]))
    if any("attacks" in run for run in runs.values()):
        lines += _attack_tables(settings, runs)
    if any("codes" in run for run in runs.values()):
        lines += _code_tables(runs)
    if results["differences"]:
        lines += ["## Differences from the first run, paired by image", ""]
        rows = []
        for name, d in results["differences"].items():
            means = f"{100 * d['corruptions']:+.2f} ± {100 * d['corruptions_error']:.2f}" if "corruptions" in d else ""
            rows.append([name, f"{100 * d['clean']:+.1f} (p {d['clean_p']:.2g})", means])
        lines += _table(["run", "clean (McNemar)", "corruptions, mean ± standard error over images"], rows)
    return "\n".join(lines)


def _by_name(groups: dict[str, list[Plain]], title: str, kind: str, key: str, names: list[str]) -> list[str]:
    rows = [[name, *(_over(group, kind, n, key) for n in names)] for name, group in groups.items()]
    return _table([title, *names], rows)


def _corruption_tables(settings: Plain, groups: dict[str, list[Plain]], some: Plain) -> list[str]:
    names = list(some["corruptions"])
    lines = [
        "## Corruptions", "",
        "Made on the square that the model or the tokenizer gets, without a second JPEG: not the published files. "
        f"Lengths {settings['lengths']}. Severities {', '.join(map(str, settings['severities']))}. Mean over "
        f"{len(some['mean_over'])} corruptions: {', '.join(some['mean_over'])}. Drop: (clean - robust) / clean.", "",
    ]  # fmt: skip
    severity = str(settings["severities"][0])
    first = [n for n in ("gaussian_noise", "gaussian_blur") if n in names]
    head = ["run", "clean", "ECE", "mean", "drop", *(["mCE"] if "mce" in some else [])]
    head += [f"{n.replace('_', ' ')} {severity} (drop)" for n in first]
    rows = []
    for name, group in groups.items():
        row = [name, _over(group, "clean", "accuracy"), _over(group, "clean", "ece")]
        row += [_over(group, "mean_accuracy"), _over(group, "relative_drop")]
        row += [_over(group, "mce")] if "mce" in some else []
        for n in first:
            drops = [_drop(r["clean"]["accuracy"], r["corruptions"][n][severity]["accuracy"]) for r in group]
            row.append(f"{_over(group, 'corruptions', n, severity, 'accuracy')} ({_spread(drops, 0)})")
        rows.append(row)
    lines += _table(head, rows)
    unseen = {name: _over(group, "clean", "unseen_codes", decimals=2) for name, group in groups.items()}
    if any(unseen.values()):
        said = ", ".join(f"{name} {share} %" for name, share in unseen.items() if share)
        lines += [f"Codes that training had not kept, on clean images: {said}.", ""]
    rows = [[n.replace("_", " "), *(_over(g, "corruption_means", n) for g in groups.values())] for n in names]
    return lines + _table(["mean over severities", *groups], rows)


def _attack_tables(settings: Plain, runs: Plain) -> list[str]:
    radii = [f"{e:.8g}" for e in settings["eps"]]
    lines = [
        "## Attacks on pixels", "",
        f"{settings['attacked']} images, {settings['norm']}, in [0, 1], judged on the real pipeline. "
        "An image broken within a radius stays broken within larger ones. Worst: broken by any of the attacks.", "",
    ]  # fmt: skip
    rows = []
    for name, group in _groups(runs).items():
        if not all("attacks" in run for run in group):
            continue
        rows.append([f"**{name}**", f"clean {_over(group, 'attacked_clean')}", "", *["" for _ in radii]])
        for row, cells in group[0]["attacks"].items():
            one = next(iter(cells.values()))
            effort = ", ".join(f"{one[k]} {k}" for k in ("steps", "restarts", "queries") if k in one)
            kind = "estimated" if one["estimated"] else "exact" if one["gradient"] else "none"
            rows.append([row, effort, kind, *(_over(group, "attacks", row, e, "accuracy") for e in radii)])
            if "itself" in one:
                itself = [_over(group, "attacks", row, e, "itself") for e in radii]
                rows.append([f"{row}, judged on itself", effort, kind, *itself])
        rows.append(["**worst**", "all of the above", "", *(f"**{_over(group, 'worst', e)}**" for e in radii)])
    lines += _table(["attack", "effort", "gradient", *(show_eps(e, settings["norm"]) for e in settings["eps"])], rows)
    checks = [(name, check) for name, run in runs.items() for check in run.get("checks", [])]
    rows = [[n, c["row"], c["check"], "yes" if c["passed"] else "**no**", c["seen"]] for n, c in checks]
    return [*lines, "### Signs of masked gradients", "", *_table(["run", "attack", "check", "passed", "seen"], rows)]


def _code_tables(runs: Plain) -> list[str]:
    swaps = next(list(run["codes"]["any"]) for run in runs.values() if "codes" in run)
    rows = []
    for name, group in _groups(runs).items():
        for kind, cells in group[0].get("codes", {}).items():
            one = next(iter(cells.values()))
            row = [f"{name}, {SWAPS[kind]}", *(_over(group, "codes", kind, n, "accuracy") for n in swaps)]
            seen = [f"{one[key]:{form}}" if one.get(key) is not None else "" for key, form in LOOKS.items()]
            rows.append([*row, *seen])
    head = ["codes swapped", *swaps, f"PSNR in dB after {swaps[-1]}, decoded", "LPIPS"]
    return ["## Attacks on codes", "", CODES_NOTE, "", *_table(head, rows)]


def attack_curves(runs: Plain) -> Curves:
    """Accuracy by radius of every attack, and of the worst of them."""
    found: Curves = {}
    for name, run in runs.items():
        rows = {row: {e: c["accuracy"] for e, c in cells.items()} for row, cells in run.get("attacks", {}).items()}
        for row, known in {"worst": run["worst"], **rows}.items() if rows else ():
            points = [(float(e), a) for e, a in known.items() if a is not None and float(e) > 0]
            found.setdefault(name, {})[row] = [(0.0, run["attacked_clean"]), *points]
    return found


def code_curves(runs: Plain) -> Curves:
    """Accuracy by the number of swapped codes."""
    return {
        name: _curves({SWAPS[kind]: cells for kind, cells in run["codes"].items()}, _clean(run))
        for name, run in runs.items()
        if "codes" in run
    }


def corruption_curves(runs: Plain) -> Curves:
    """Accuracy by severity of every corruption."""
    return {
        name: _curves(run["corruptions"], ((0.0, run["clean"]["accuracy"]),))
        for name, run in runs.items()
        if "corruptions" in run
    }


def _figures(job: Robustness, runs: Plain) -> None:
    """Curves against radius, number of swapped codes and severity; decoded images before and after swaps."""
    if attacks := attack_curves(runs):
        unit, scale = ("eps (1/255)", 255.0) if job.norm == "linf" else ("eps (L2)", 1.0)
        write(job.out / "attacks.png", accuracy_curves(_over_seeds(attacks), unit, scale))
    if swaps := code_curves(runs):
        write(job.out / "codes.png", accuracy_curves(_over_seeds(swaps), "codes swapped"))
        for subject in job.subjects:
            if pictures := job.on_codes.swapped_pictures(subject):
                write(job.out / f"codes-{subject.folder.name}.png", rows_of_pictures(pictures))
    if whole := corruption_curves(runs):
        write(job.out / "corruptions.png", accuracy_curves(_over_seeds(whole), "severity"))


def _over_seeds(runs: Curves) -> Curves:
    """One panel for each row of a table: the mean over its seeds, of lines and points that all of them have."""
    out: Curves = {}
    for name, group in _groups(runs).items():
        lines = {line: [dict(run[line]) for run in group] for line in group[0] if all(line in run for run in group)}
        out[f"{name} ({len(group)} seeds)" if len(group) > 1 else name] = {
            line.replace("_", " "): [
                (x, mean(points[x] for points in seeds)) for x in seeds[0] if all(x in points for points in seeds)
            ]
            for line, seeds in lines.items()
        }
    return out


def _clean(run: Plain) -> tuple[tuple[float, float], ...]:
    """The point without a change; results of older versions do not have it."""
    return ((0.0, run["attacked_clean"]),) if "attacked_clean" in run else ()


def _curves(kinds: Plain, start: tuple[tuple[float, float], ...]) -> dict[str, list[tuple[float, float]]]:
    return {k: [*start, *((float(n), c["accuracy"]) for n, c in cells.items())] for k, cells in kinds.items()}
