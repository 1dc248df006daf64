"""Resolved settings of every recipe, kept in settings.jsonl: `python tests/golden/settings.py` writes them anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tilework.core.config import encode
from tilework.recipes import recipes

FILE = Path(__file__).with_name("settings.jsonl")


def settings() -> dict[str, Any]:
    """Every recipe and chain by name, as plain values."""
    return {name: json.loads(json.dumps(encode(recipes[name].run))) for name in recipes}


def read() -> dict[str, Any]:
    """What the file says."""
    return dict(json.loads(line) for line in FILE.read_text().splitlines())


def main() -> None:
    """Write the file, a recipe in a line."""
    FILE.write_text("".join(json.dumps([name, value]) + "\n" for name, value in settings().items()))


if __name__ == "__main__":
    main()
