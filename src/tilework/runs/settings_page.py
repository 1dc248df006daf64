"""docs/settings.md from the settings classes: `python -m tilework.runs.settings_page` writes it anew."""

from __future__ import annotations

import ast
import inspect
import io
import json
import pkgutil
import tokenize
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

import tilework
from tilework.augment import Augment
from tilework.core.artefact import KEY
from tilework.core.config import encode
from tilework.layers.stems import StemConfig
from tilework.models import ModelConfig
from tilework.objectives import ObjectiveConfig
from tilework.runs.run import Chain, Run

FILE = Path("docs/settings.md")
ROOMS = ("augment", "layers", "models", "objectives", "tokenizers")  # packages whose modules register classes
CHOICES = (ModelConfig, StemConfig, ObjectiveConfig, Augment)  # classes that a `name` selects from a registry
HEAD = """# Settings

Written by `python -m tilework.runs.settings_page`; do not edit.

A recipe is a complete `Run` or `Chain`: `tilework recipes NAME` prints one as YAML. Override settings on the command
line, `tilework train NAME fit.batch=32 augment.cutmix.alpha=0.5`, or in a YAML file, `--config mine.yaml`. List items
are selected by name or by index from 0. For a model, stem, objective or augmentation, `name` selects the class:
`model.stem.name=patch`.
"""


def page() -> str:
    """The whole page, with every class that the fields of a run or chain lead to."""
    for module in pkgutil.walk_packages(tilework.__path__, "tilework."):
        if module.name.split(".")[1] in ROOMS:
            import_module(module.name)
    lines = [HEAD]
    for kind in _plain_classes():
        lines += [f"## {kind.__name__}", *_section(kind)]
    for base in CHOICES:
        lines += [f"## {base.__name__}: {base.choices.kind}s by name", ""]
        for name, kind in _entries(base):
            lines += [f"### {name}", *_section(kind)]
    return "\n".join(lines)


def _entries(base: Any) -> Iterator[tuple[str, type]]:
    """Registered classes by name; not those of plug-ins."""
    for name in base.choices:
        if base.choices[name].__module__.startswith("tilework."):
            yield name, base.choices[name]


def _plain_classes() -> list[type]:
    """Settings classes without a registry, in the order of their first use."""
    found: list[type] = []

    def visit(hint: Any) -> None:
        if isinstance(hint, type) and is_dataclass(hint) and hint not in found and not issubclass(hint, CHOICES):
            found.append(hint)
            visit_fields(hint)
        for inner in get_args(hint):
            visit(inner)

    def visit_fields(kind: type) -> None:
        hints = get_type_hints(kind)
        for field in _settings(kind):
            visit(hints[field.name])

    for root in (Run, Chain):
        visit(root)
    for base in CHOICES:
        for _, kind in _entries(base):
            visit_fields(kind)
    return found


def _settings(kind: Any) -> list[Field[Any]]:
    return [field for field in fields(kind) if field.init]


def _section(kind: type) -> list[str]:
    """First docstring line and the table of settings."""
    lines = ["", (kind.__doc__ or "").partition("\n")[0], ""]
    if not _settings(kind):
        return lines
    comments = _comments(kind)
    lines += ["| setting | type | default | |", "|---|---|---|---|"]
    for field in _settings(kind):
        cells = (f"`{field.name}`", f"`{field.type}`", _default(field), comments.get(field.name, ""))
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return [*lines, ""]


def _default(field: Field[Any]) -> str:
    if KEY in field.metadata:
        return f"`--{field.metadata[KEY]}`"
    value = field.default if field.default_factory is MISSING else field.default_factory()
    if value is MISSING:
        return "required"
    if is_dataclass(value):
        return f"`{_name(value)}`"
    return f"`{json.dumps(encode(value))}`"


def _name(value: Any) -> str:
    """Registered name of a default, or its class."""
    base = next((base for base in CHOICES if isinstance(value, base)), None)
    return type(value).__name__ if base is None else str(base.choices.name_of(type(value)))


def _comments(kind: type) -> dict[str, str]:
    """The comment behind each field, of a class and its bases."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if is_dataclass(owner):
            source = inspect.cleandoc("\n" + inspect.getsource(owner))
            tokens = tokenize.generate_tokens(io.StringIO(source).readline)
            by_line = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
            (tree,) = ast.parse(source).body
            for node in ast.walk(tree):
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    found[node.target.id] = by_line.get(node.end_lineno or node.lineno, "")
    return found


if __name__ == "__main__":
    FILE.write_text(page())
