"""What `tilework recipes` lists, kept beside the recipes so that listing them needs no torch.

`python -m tilework.recipes.index` writes it anew. Where the recipes have changed since, they are read themselves.
"""

from __future__ import annotations

import json
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from tilework.core.methods import imported

FILE = Path(__file__).with_name("index.jsonl")
Card = dict[str, Any]


def sources() -> str:
    """The hash of the files that recipes are made in."""
    return sha256(b"".join(path.read_bytes() for path in sorted(FILE.parent.glob("*.py")))).hexdigest()


def cards() -> list[Card]:
    """Every recipe that is listed; `run` has its settings."""
    return [card for card in entries() if card["listed"]]


def entries() -> list[Card]:
    """The same with the small forms that have no name of their own."""
    return _kept() or collect()


def names() -> set[str] | None:
    """Every name that `find` knows; None where only the recipes themselves can tell."""
    kept = _kept()
    if kept is None:
        return None
    return {name for card in kept for name in (card["name"], *card["also"], f"{card['name']}_cpu")}


def find_entry(name: str, small: bool = False) -> Card | None:
    """A recipe by its name, or its small form; None where the recipes themselves must say what is wrong."""
    known = {other: card for card in _kept() or () for other in (*card["also"], card["name"])}
    card = known.get(name)
    return card if not small or card is None else known.get(card["small"])


def _kept() -> list[Card] | None:
    """The list beside the recipes, unless they have changed since, or other packages bring some."""
    return None if imported else _read()


@cache
def _read() -> list[Card] | None:
    head, *lines = FILE.read_text("utf-8").splitlines() if FILE.is_file() else ["null"]
    return [json.loads(line) for line in lines] if json.loads(head) == sources() else None


def collect() -> list[Card]:
    """The same from the recipes themselves."""
    from tilework.core.config import encode
    from tilework.recipes import catalogue, small_forms

    listed = [(recipe, True) for recipe in catalogue]
    hidden = [(recipe, False) for recipe in small_forms.values() if recipe not in catalogue]
    return [{**recipe.card(), "run": encode(recipe.run), "listed": there} for recipe, there in (*listed, *hidden)]


if __name__ == "__main__":
    FILE.write_text("".join(json.dumps(line) + "\n" for line in (sources(), *collect())), "utf-8")
