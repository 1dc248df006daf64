"""README and docs: links and anchors lead somewhere, files exist, commands parse, recipes are known; without mkdocs."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from tilework.cli.inputs import in_order
from tilework.cli.main import COMMANDS, _command, summary
from tilework.cli.parse import call_with_arguments
from tilework.core.errors import UsageError
from tilework.recipes.index import names

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
MADE = ("demo-out/", "results/robustness")  # paths that commands make, or that stand for others


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose(text: str) -> str:
    return FENCE.sub("", text)


@cache
def anchors(path: Path) -> frozenset[str]:
    """Of the headings of a page, as mkdocs and GitHub make them; a second one of a name gets a number."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", prose(path.read_text()), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip())
        number = next(n for n in range(1000) if (f"{slug}_{n}" if n else slug) not in found)
        found.add(f"{slug}_{number}" if number else slug)
    return frozenset(found)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links(page: Path) -> None:
    broken = []
    for target in LINK.findall(prose(page.read_text())):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_are_named_exist(page: Path) -> None:
    text = page.read_text()
    if page.name in ("log.md",):  # of what was tried and is gone
        pytest.skip("names what no longer exists")
    named = set(re.findall(r"(?<![\w/.-])((?:docs|tests|benchmarks|results|src/tilework)/[\w./*{}|<>-]*\w)", text))
    named = {path for path in named if not re.search(r"[*{}|<>]", path) and "/runs/" not in path}  # those are not kept
    missing = [path for path in named if not path.startswith(MADE) and not (ROOT / path).exists()]
    rooms = {path.name for path in (ROOT / "src/tilework").iterdir() if path.is_dir()}
    inside = {path for path in re.findall(r"(?<![\w/.-])(\w+/\w+\.py)", text) if path.split("/")[0] in rooms}
    missing += [path for path in inside if not any((ROOT / top / path).exists() for top in ("src/tilework", "tests"))]
    assert not missing


def lines(text: str) -> Iterator[tuple[str, bool]]:
    """Command lines of blocks without a language, which are whole, and those in backticks, which may only name one."""
    for language, block in FENCE.findall(text):
        if language in ("", "bash", "sh", "console"):
            yield from ((line, True) for line in block.replace("\\\n", " ").splitlines())
    for code in re.findall(r"`([^`]+)`", prose(text)):
        yield " ".join(code.split()), False


def commands(page: Path) -> Iterator[tuple[str, bool]]:
    for line, whole in lines(page.read_text()):
        found = re.match(r"(?:[A-Z_]+=\S+ +)*(?:torchrun .* -m )?tilework (.+)", re.split(r" [|>] ", line.strip())[0])
        if found and "..." not in line:
            yield found[1], whole


EXAMPLES = sorted({(name_of(page), line, whole) for page in PAGES for line, whole in commands(page)})
UNFINISHED = (" is missing", " are missing", "missing value")  # said of a line that only names a command and an option


@cache
def parser(command: str) -> Any:
    module, _, function = COMMANDS[command].partition(".")
    return getattr(import_module(f"tilework.cli.{module}"), function)


def parse(line: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is wrong with a command line; empty if nothing. Nothing is run or fetched."""
    words = shlex.split(line, comments=True)
    if words[:1] in (["--help"], ["--version"]):
        return ""
    with redirect_stderr(StringIO()) as said, redirect_stdout(StringIO()):
        try:
            name, rest = _command(words)
        except (SystemExit, UsageError) as error:
            return said.getvalue() or str(error) or "a family of commands"
        if not rest or rest == ["--help"]:
            return ""
        if name in ("train", "recipes") and not rest[0].startswith("-"):
            known = names()
            if known is not None and rest[0] not in known and not rest[0].isupper() and rest[0] != "hidden_cpu":
                return f"no recipe {rest[0]}"
        call = parser(name)
        monkeypatch.setattr("tilework.core.hub.local", lambda given: Path(str(given)))
        try:
            call_with_arguments(call, name, in_order(name, rest))
        except SystemExit:
            return ""  # its help
        except UsageError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("page", sorted({page for page, *_ in EXAMPLES}))
def test_commands_parse(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {}
    for where, line, whole in EXAMPLES:
        said = parse(line, monkeypatch) if where == page else ""
        if said and (whole or "is not known" in said or not any(sign in said for sign in UNFINISHED)):
            wrong[line] = said
    assert not wrong


def test_a_wrong_command_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself can fail."""
    assert parse("train linear_cpu --data a.tok --out x", monkeypatch) == ""
    for line in (
        "trian x",
        "train linear_cpu --data a --nothing 3 --out x",
        "train no_such --data a --out x",
        "merge a",
    ):
        assert parse(line, monkeypatch)
    assert len(EXAMPLES) > 60


def test_recipes_that_are_named_exist() -> None:
    known = names()
    assert known is not None
    wrong = []
    for page in PAGES:
        text = page.read_text()
        for word in set(re.findall(r"(?<![\w./])([a-z][a-z0-9_]+_cpu)(?![\w(])", text)):
            if word not in known and word != "hidden_cpu" and page.name not in ("log.md",):
                wrong.append(f"{name_of(page)}: {word}")
    assert not wrong


def test_the_site_has_every_page() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    nav = set(re.findall(r": ([\w/.-]+\.md)$", text, re.M))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in PAGES if page.parent.name in ("docs", "papers")}
    assert nav == pages | {"index.md"}  # made from README.md
    assert yaml.safe_load(text)["docs_dir"] == "docs"


def test_the_table_of_commands() -> None:
    text = (ROOT / "docs/commands.md").read_text()
    rows = [f"| `tilework {name}` | {summary(name)} |" for name in COMMANDS]
    assert re.findall(r"^\| `tilework .*$", text, re.M) == rows, "docs/commands.md should have:\n" + "\n".join(rows)


def test_results_have_contents() -> None:
    text = (ROOT / "docs/results.md").read_text()
    listed = re.findall(r"^- \[(.*)\]\(#.+\)$", text, re.M)
    assert listed == [heading for heading in re.findall(r"^## (.+)$", prose(text), re.M) if heading != "Contents"]


def test_modules_of_the_python_page_exist() -> None:
    for name in re.findall(r"^::: ([\w.]+)$", (ROOT / "docs/python.md").read_text(), re.M):
        path = ROOT / "src" / Path(*name.split("."))
        if path.with_suffix(".py").is_file():
            continue
        tree = ast.parse(path.parent.with_suffix(".py").read_text())
        assert path.name in {getattr(node, "name", "") for node in tree.body}, name


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
    assert len(prose(text).split()) < 900  # three minutes
