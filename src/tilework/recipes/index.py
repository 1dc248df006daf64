"""What `tilework recipes` lists, kept beside the recipes so that listing them needs no torch.

`python -m tilework.recipes.index` writes it anew. Where the recipes have changed since, they are read themselves.
"""

from __future__ import annotations

import json
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
    """What is known about every recipe but its run."""
    if imported:  # recipes of other packages are listed too
        return collect()
    head, *lines = FILE.read_text("utf-8").splitlines() if FILE.is_file() else ["null"]
    return [json.loads(line) for line in lines] if json.loads(head) == sources() else collect()


def collect() -> list[Card]:
    """The same from the recipes themselves."""
    from tilework.recipes import catalogue

    return [recipe.card() for recipe in catalogue]


if __name__ == "__main__":
    FILE.write_text("".join(json.dumps(line) + "\n" for line in (sources(), *collect())), "utf-8")
