"""Tables and figures of robustness: what was measured, the worst case, and the signs of masked gradients.

N images | A images that are attacked
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import sqrt
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from safetensors.numpy import save

from tilework.analysis.robustness.cells import Cell, Subject, show_eps
from tilework.analysis.robustness.code_attacks import NEAR
from tilework.analysis.robustness.inputs import ATTACKS, GRADIENTS
from tilework.core.config import Plain
from tilework.core.files import write, write_json
from tilework.evaluation.corruptions import ALEXNET, CORRUPTIONS, SIDE, mean_corruption_error
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
    """results.json, table.md, hits.safetensors and figures of all cells of these runs, also of earlier commands."""
    known = {subject.name: subject.cells() for subject in job.subjects}
    shared = _shared_corruptions(list(known.values()))
    runs = {subject.name: _results(job, subject, known[subject.name], shared) for subject in job.subjects}
    height, width = job.pixels.shape[2:]
    radii = {float(eps) for run in runs.values() for cells in run.get("attacks", {}).values() for eps in cells}
    settings = {
        "data": str(job.data), "images": len(job.pixels), "attacked": len(job.attacked), "size": [height, width],
        "seed": job.seed, "norm": job.norm, "eps": sorted(radii),
        "lengths": "as published" if job.native else f"times {min(height, width) / SIDE:.3g} (made for {SIDE} px)",
        "severities": sorted({severity for severities in shared.values() for severity in severities}),
    }  # fmt: skip
    results = {"settings": settings, "runs": runs, "differences": _differences(job, known, shared)}
    hits = {f"{run}/{name}": cell.hits.astype(np.uint8) for run, cells in known.items() for name, cell in cells.items()}
    write(job.out / HITS, save(hits))
    write_json(job.out / RESULTS, results)
    write(job.out / TABLE, markdown(results).encode())
    _figures(job, runs)
    return results


def _shared_corruptions(runs: list[dict[str, Cell]]) -> dict[str, list[int]]:
    """Corruptions that all runs have, in their usual order, each with the severities that all have."""
    pairs = [{tuple(name.split("-")[1:]) for name in cells if name.startswith("corruption-")} for cells in runs]
    both = set.intersection(*pairs)
    found = {name: sorted(int(severity) for other, severity in both if other == name) for name in CORRUPTIONS}
    return {name: severities for name, severities in found.items() if severities}


def _counted(names: Iterable[str]) -> list[str]:
    """Corruptions that means are over: ImageNet-C's fifteen, without the four extra ones where there are others."""
    return [name for name in names if name in ALEXNET] or list(names)


def _attack_rows(job: Robustness, cells: Mapping[str, Cell]) -> dict[str, dict[float, Cell]]:
    """Cells of each attack by radius; an image that is broken within one is broken within larger ones."""
    found: dict[tuple[str, str], dict[float, Cell]] = {}
    for name, cell in cells.items():
        one = cell.figures
        if name.startswith("attack-") and one["norm"] == job.norm:
            found.setdefault((one["row"], _effort(one)), {})[one["eps"]] = cell
    efforts = Counter(row for row, _ in found)
    rows: dict[str, dict[float, Cell]] = {}
    for (row, effort), known in sorted(found.items(), key=lambda item: _rank(item[1])):
        stands, chained = np.ones(len(job.attacked), bool), {}
        for eps in sorted(known):
            stands = stands & known[eps].hits
            chained[eps] = Cell(stands, {**known[eps].figures, "accuracy": float(stands.mean())})
        rows[row if efforts[row] == 1 else f"{row}, {effort}"] = chained
    return rows


def _rank(cells: Mapping[float, Cell]) -> tuple[int, int, str]:
    """Attacks and gradients in the order of the command's help."""
    one = next(iter(cells.values())).figures
    return ATTACKS.index(one["attack"]), GRADIENTS.index(one["gradient"] or "exact"), _effort(one)


def _effort(figures: Plain) -> str:
    """What an attack could spend, for people."""
    names = ("steps", "restarts", "targets", "temperatures", "queries")
    return ", ".join(
        f"{figures[name]} {name if figures[name] != 1 else name[:-1]}" for name in names if name in figures
    )


def _results(job: Robustness, subject: Subject, cells: dict[str, Cell], shared: dict[str, list[int]]) -> Plain:
    clean = cells["clean"]
    out: Plain = {"tokens": subject.ask.codes is not None, "clean": clean.figures}
    by_kind = {name: {s: cells[f"corruption-{name}-{s}"].figures for s in found} for name, found in shared.items()}
    if by_kind:
        means = {name: mean(cell["accuracy"] for cell in kinds.values()) for name, kinds in by_kind.items()}
        counted = _counted(means)
        out["corruptions"] = {name: {str(s): cell for s, cell in kinds.items()} for name, kinds in by_kind.items()}
        out["corruption_means"] = means
        out["mean_accuracy"] = mean(means[name] for name in counted)
        out["mean_ece"] = mean(cell["ece"] for name in counted for cell in by_kind[name].values())
        out["mean_over"] = counted
        out["relative_drop"] = _drop(clean.accuracy, out["mean_accuracy"])
        whole = set(ALEXNET) <= set(means) and all(len(shared[name]) == 5 for name in ALEXNET)
        if whole and len(subject.classes) == 1000 and set(job.pixels.shape[2:]) == {SIDE}:
            out["mce"] = mean_corruption_error({name: 1 - value for name, value in means.items()})
    out["proxies"] = {name[6:]: cell.figures for name, cell in cells.items() if name.startswith("proxy-")}
    out["shifts"] = _shifts(cells)
    rows = _attack_rows(job, cells)
    swaps = {kind: _swaps(cells, kind) for kind in SWAPS}
    if rows or any(swaps.values()):
        out["attacked_clean"] = float(clean.hits[job.attacked.numpy()].mean())
    if rows:
        out["attacks"] = {
            row: {f"{eps:.8g}": cell.figures for eps, cell in known.items()} for row, known in rows.items()
        }
        out["worst"] = _worst(rows)
        out["checks"] = _checks(job, cells, rows)
    if any(swaps.values()):
        out["codes"] = swaps
    return out


def _shifts(cells: Mapping[str, Cell]) -> Plain:
    """By name; data sets of one name that differ are told apart by their hash."""
    found = {name: cell.figures for name, cell in cells.items() if name.startswith("shift-")}
    names = Counter(figures["shift"] for figures in found.values())
    return {
        one["shift"] if names[one["shift"]] == 1 else f"{one['shift']} ({name[-16:]})": one
        for name, one in found.items()
    }


def _swaps(cells: Mapping[str, Cell], kind: str) -> Plain:
    """Figures of one kind of swapped codes, by their number."""
    pattern = re.compile(rf"codes-{kind}-(\d+)")
    found = {int(match[1]): cell.figures for name, cell in cells.items() if (match := pattern.fullmatch(name))}
    return {str(number): found[number] for number in sorted(found)}


def _worst(rows: Mapping[str, dict[float, Cell]]) -> Plain:
    """Accuracy on images that no attack breaks within a radius, by radius; a smaller radius counts for larger ones."""
    stands: np.ndarray | None = None
    out: Plain = {}
    for eps in sorted({eps for cells in rows.values() for eps in cells}):
        known = [cells[eps].hits for cells in rows.values() if eps in cells]
        stands = np.logical_and.reduce(known if stands is None else [stands, *known])
        out[f"{eps:.8g}"] = float(stands.mean())
    return out


def _drop(clean: float, robust: float) -> float:
    return (clean - robust) / clean if clean else 0.0


def _checks(job: Robustness, cells: Mapping[str, Cell], rows: dict[str, dict[float, Cell]]) -> list[Plain]:
    """Signs of masked gradients, each with what it saw: passed, or a sentence that says what fired."""
    found: list[Plain] = []

    def add(row: str, name: str, passed: bool, seen: str) -> None:
        found.append({"row": row, "check": name, "passed": passed, "seen": seen})

    kinds = {row: next(iter(known.values())).figures for row, known in rows.items()}
    random = next((rows[row] for row, one in kinds.items() if one["attack"] == "random"), {})
    blind = {row: rows[row] for row, one in kinds.items() if one["attack"] in ("square", "transfer")}
    for row, own in rows.items():
        first = kinds[row]
        if (gradient := first["gradient"]) is None:
            continue
        zeros = [cell.figures["zero_gradient"] for cell in own.values() if cell.figures["zero_gradient"] is not None]
        if zeros:
            add(row, "gradients are not zero", max(zeros) < 0.01, f"{max(zeros):.1%} of images have none")
        both = [eps for eps in own if eps in random and eps > 0]
        if both:
            worse = [eps for eps in both if random[eps].accuracy < own[eps].accuracy]
            add(row, "random signs are not stronger", not worse, _at(worse, random, own, job))
        for name, others in blind.items():
            worse = [eps for eps in own if eps in others and others[eps].accuracy < own[eps].accuracy]
            add(row, f"{name} is not stronger", not worse, _at(worse, others, own, job))
        moved = [(eps, own[eps].figures["codes_changed"], random[eps].figures["codes_changed"]) for eps in both]
        moved = [(eps, mine, other) for eps, mine, other in moved if mine is not None and other is not None]
        if moved:
            seen = ", ".join(f"{show_eps(e, job.norm)}: {o:.1%} against {r:.1%}" for e, o, r in moved)
            add(row, "it moves no fewer codes than random signs", all(o >= r for _, o, r in moved), seen)
        if first["attack"] == "apgd-ce" and gradient != "unquantised":
            _check_effort(partial(add, row), first, cells, job)
    return found


def _check_effort(
    add: Callable[[str, bool, str], None], first: Plain, cells: Mapping[str, Cell], job: Robustness
) -> None:
    """Whether the whole range breaks every image, and fewer steps are not stronger. first: figures of the attack."""
    steps, few = first["steps"], max(1, first["steps"] // 4)
    mine = [
        cell
        for name, cell in cells.items()
        if name.startswith("check-")
        and (cell.figures["gradient"], cell.figures["norm"]) == (first["gradient"], job.norm)
    ]

    def by_radius(kind: str, steps: int) -> dict[float, Cell]:
        wanted = [cell for cell in mine if (cell.figures["check"], cell.figures["steps"]) == (kind, steps)]
        return {cell.figures["eps"]: cell for cell in wanted}

    for whole in by_radius("whole", steps).values():
        add("eps 255/255 leaves none", whole.accuracy == 0, f"{whole.accuracy:.1%} of {len(whole.hits)} stand")
    less = by_radius("fewer", few)
    for eps, all_ in by_radius("all", steps).items():
        if eps in less:
            seen = (
                f"{few} steps {less[eps].accuracy:.1%}, {steps} steps {all_.accuracy:.1%} at {show_eps(eps, job.norm)}"
            )
            add("more steps are not weaker", all_.accuracy <= less[eps].accuracy, seen)


def _at(worse: list[float], others: dict[float, Cell], own: dict[float, Cell], job: Robustness) -> str:
    if not worse:
        return "at no radius"
    return ", ".join(f"{show_eps(e, job.norm)}: {others[e].accuracy:.1%} against {own[e].accuracy:.1%}" for e in worse)


def _differences(job: Robustness, known: dict[str, dict[str, Cell]], shared: dict[str, list[int]]) -> Plain:
    """Each run against the first, paired by image: clean, and the mean over corruptions with its standard error."""
    first = known[job.subjects[0].name]
    names = [f"corruption-{name}-{severity}" for name in _counted(shared) for severity in shared[name]]
    out: Plain = {}
    for subject in job.subjects[1:]:
        own = known[subject.name]
        row: Plain = {
            "clean": own["clean"].accuracy - first["clean"].accuracy,
            "clean_p": mcnemar(own["clean"].hits, first["clean"].hits),
        }
        if names:
            each = np.mean([own[n].hits.astype(float) - first[n].hits.astype(float) for n in names], 0)  # (N,)
            error = float(each.std(ddof=1) / sqrt(len(each))) if len(each) > 1 else None
            row |= {"corruptions": float(each.mean()), "corruptions_error": error}
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
        lines += _by_name(groups, "ECE", "shifts", "ece", list(some["shifts"]))
        if any(run["tokens"] for run in runs.values()):
            tokens = {name: group for name, group in groups.items() if group[0]["tokens"]}
            lines += _by_name(tokens, "codes not kept in training", "shifts", "unseen_codes", list(some["shifts"]))
        for name, one in some["shifts"].items():
            if one["missing_classes"]:
                missing = one["missing_classes"]
                few = ", ".join(missing[:10]) + (", ..." if len(missing) > 10 else "")
                lines += [f"Classes without images in {name}: {len(missing)} ({few}).", ""]
    if any("attacks" in run for run in runs.values()):
        lines += _attack_tables(settings, runs)
    if any("codes" in run for run in runs.values()):
        lines += _code_tables(runs)
    if results["differences"]:
        lines += ["## Differences from the first run, paired by image", ""]
        rows = []
        for name, d in results["differences"].items():
            error = f" ± {100 * d['corruptions_error']:.2f}" if d.get("corruptions_error") is not None else ""
            means = f"{100 * d['corruptions']:+.2f}{error}" if "corruptions" in d else ""
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
    head = ["run", "clean", "ECE", "mean", "drop", "ECE, corrupted", *(["mCE"] if "mce" in some else [])]
    head += [f"{n.replace('_', ' ')} {severity} (drop)" for n in first]
    rows = []
    for name, group in groups.items():
        row = [name, _over(group, "clean", "accuracy"), _over(group, "clean", "ece")]
        row += [_over(group, "mean_accuracy"), _over(group, "relative_drop"), _over(group, "mean_ece")]
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
    lines += _table(["mean over severities", *groups], rows)
    rows = []
    for one in settings["severities"]:
        counted = [n for n in some["mean_over"] if str(one) in some["corruptions"][n]]
        means = [_severity_means(group, counted, str(one)) for group in groups.values()]
        rows += [[f"mean of {len(counted)}, severity {one}", *map(_spread, means)]] if counted else []
        for n in first:
            cells = [_over(group, "corruptions", n, str(one), "accuracy") for group in groups.values()]
            rows.append([f"{n.replace('_', ' ')}, severity {one}", *cells])
    return lines + _table(["by severity", *groups], rows)


def _severity_means(group: list[Plain], names: list[str], severity: str) -> list[Any]:
    return [mean(run["corruptions"][name][severity]["accuracy"] for name in names) for run in group]


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
            effort = _effort(one)
            kind = "estimated" if one["estimated"] else "exact" if one["gradient"] else "none"
            rows.append([row, effort, kind, *(_over(group, "attacks", row, e, "accuracy") for e in radii)])
            for key, said in (("itself", "judged on itself"), ("accuracy_bytes", "rounded to bytes")):
                if key in one:
                    also = [_over(group, "attacks", row, e, key) for e in radii]
                    rows.append([f"{row}, {said}", effort, kind, *also])
        rows.append(["**worst**", "all of the above", "", *(f"**{_over(group, 'worst', e)}**" for e in radii)])
    lines += _table(["attack", "effort", "gradient", *(show_eps(e, settings["norm"]) for e in settings["eps"])], rows)
    checks = [(name, check) for name, run in runs.items() for check in run.get("checks", [])]
    rows = [[n, c["row"], c["check"], "yes" if c["passed"] else "**no**", c["seen"]] for n, c in checks]
    return [*lines, "### Signs of masked gradients", "", *_table(["run", "attack", "check", "passed", "seen"], rows)]


def _code_tables(runs: Plain) -> list[str]:
    numbers = {n for run in runs.values() for cells in run.get("codes", {}).values() for n in cells}
    swaps = sorted(numbers, key=int)
    rows = []
    for name, group in _groups(runs).items():
        for kind, cells in group[0].get("codes", {}).items():
            row = [f"{name}, {SWAPS[kind]}", *(_over(group, "codes", kind, n, "accuracy") for n in swaps)]
            looked = [n for n in cells if cells[n].get("psnr") is not None]
            one = cells[looked[-1]] if looked else {}
            seen = [f"{one[key]:{form}}" if one.get(key) is not None else "" for key, form in LOOKS.items()]
            rows.append([*row, f"{seen[0]} ({looked[-1]})" if seen[0] else "", seen[1]])
    head = ["codes swapped", *swaps, "PSNR in dB of changed images, decoded (after at most)", "LPIPS"]
    return ["## Attacks on codes", "", CODES_NOTE, "", *_table(head, rows)]


def attack_curves(runs: Plain) -> Curves:
    """Accuracy by radius of every attack, and of the worst of them."""
    found: Curves = {}
    for name, run in runs.items():
        rows = {row: {e: c["accuracy"] for e, c in cells.items()} for row, cells in run.get("attacks", {}).items()}
        for row, known in {**rows, "worst": run["worst"]}.items() if rows else ():
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
