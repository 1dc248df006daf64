"""`tilework report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from tilework.cli.arguments import Best, Data, Device, Json, Names, OptionalData, OptionalLocal, Photographs
from tilework.cli.output import check_replaceable, show

if TYPE_CHECKING:
    from tilework.analysis.run_page import Wanted
    from tilework.core.location import Location
    from tilework.report import Page


def report(
    things: Annotated[
        Positional[tuple[Data, ...]], arg(metavar="RUN|MODEL|STORE|TABLE ...", help_behavior_hint="(required)")
    ],
    /,
    *,
    out: Path = Path("report.html"),
    data: OptionalData = None,
    images: Photographs = None,
    tokenizer: OptionalLocal = None,
    names: Names = None,
    best: Best = False,
    count: int = 12,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Write one self-contained page about runs, stores, tables, robustness, frontiers.

    Of a run: accuracy, each class, confusion, the most confident mistakes with pictures, curves, bytes, settings, and
    the command that trains it again. The page needs no other file and no network.

    Try:
      tilework report runs/token
      tilework report runs/token runs/pixel train.tok --out both.html
      tilework report runs/token --images photos/val --names words.txt
      tilework report ablation robust frontier --out paper.html

    Args:
        things: Directories of runs, exported models, token stores, tables (also --protocol), comparisons, robustness or
            frontiers, in the order in which they shall stand on the page.
        out: HTML file to write; one that is there is replaced.
        data: Data to evaluate runs on, instead of the validation data that they were trained with.
        tokenizer: Directory of the tokenizer, if the run or store does not know it.
        count: Pictures of mistakes, or samples of a store.
    """
    from tilework.core.errors import ConfigError, InputError, OutputError
    from tilework.core.files import write

    if not things:
        raise InputError("nothing to report on", "give a run, a token store or a table")
    if out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out {out} is not an HTML file", "choose a name that ends in .html")
    if out.is_dir() or not out.parent.is_dir():
        raise OutputError(f"--out {out} cannot be written", "choose a file in a folder that is there")
    check_replaceable(out, "--out", b"content='Tilework'")
    if count < 1:
        raise ConfigError(f"--count is {count}", "give 1 or more")
    from tilework.analysis.run_page import Wanted

    things = tuple(_run_of_start(thing) for thing in things)
    kinds = [_kind(thing) for thing in things]  # refuses what is none of these before anything is computed
    page, lines = _page(
        list(zip(kinds, things, strict=True)), Wanted(data, images, tokenizer, names, best, count, device)
    )
    write(out, page.html().encode())
    told = {line[0]: line[2] or line[1] for line in lines}
    show({"page": str(out), "bytes": out.stat().st_size, **told}, json, files=True)


def _run_of_start(thing: Location) -> Location:
    """The run inside a directory that 'tilework start' wrote; anything else as it is."""
    from tilework.core.location import what_is

    if isinstance(thing, Path) and (thing / "train.csv").is_file() and what_is(thing / "run") == "a run":
        return thing / "run"
    return thing


def _kind(thing: Location) -> str:
    """What it is: a run, a store, a robustness directory, or another list of runs."""
    from tilework.analysis.robustness_page import is_robustness
    from tilework.core.errors import InputError
    from tilework.core.location import is_store, what_is
    from tilework.core.sealed import read_json

    if is_store(thing):
        return "store"
    assert isinstance(thing, Path)  # what is behind a URL is a store
    found = what_is(thing)
    if found in ("a run", "a chain of runs", "an exported model"):
        return "run"
    if found == "a table or comparison of runs":
        results = read_json(thing / "results.json") if (thing / "results.json").is_file() else {}
        return "robustness" if is_robustness(results) else "experiment"
    what = f"{thing} is {found}, not" if found else f"{thing} is not"
    raise InputError(f"{what} a run, a token store or a table", "give a directory that 'tilework' wrote")


def _page(things: list[tuple[str, Location]], wanted: Wanted) -> tuple[Page, list[list[str]]]:
    from tilework.analysis.robustness_page import add_robustness
    from tilework.analysis.run_page import add_run
    from tilework.analysis.store_page import add_store
    from tilework.core.location import what_is
    from tilework.experiments.pages import add_experiment
    from tilework.experiments.repeat import train_command
    from tilework.report import Page
    from tilework.version import __version__

    places = [Path(str(thing)) for _, thing in things]
    names = [place.parent.name if place.name == "run" and place.parent.name else place.name for place in places]
    title = ", ".join(names) if len(names) <= 3 else f"{names[0]}, {names[1]} and {len(names) - 2} more"
    page = Page(f"Report: {title}", f"Made by tilework {__version__}.")
    summary = page.later()
    lines = []
    for kind, thing in things:
        if kind == "store":
            lines.append(add_store(page, thing, wanted))
            continue
        assert isinstance(thing, Path)
        if kind == "run":
            command = "" if what_is(thing) == "an exported model" else train_command(thing)
            lines.append(add_run(page, thing, wanted, command))
        else:
            lines.append(add_robustness(page, thing) if kind == "robustness" else add_experiment(page, thing))
    if len(lines) > 1:
        summary.table(["name", "what it is", "figure", "bytes per training image"], lines)
    return page, lines
