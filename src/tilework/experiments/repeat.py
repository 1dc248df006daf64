"""The command that trains a run again: the recipe that is nearest to its settings, and what differs from it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilework.core.config import decode, encode, override, read_yaml
from tilework.core.errors import TileworkError
from tilework.core.sealed import read_json
from tilework.recipes.index import Card, cards
from tilework.runs import Chain, Run
from tilework.runs.directory import CHAIN, SETTINGS, RunDirectory

ANY = "demo_pixel"  # a whole file of settings replaces all of a recipe


def train_command(path: Path) -> str:
    """Of a run or a chain in its directory, with the data that it was trained on."""
    kind = Chain if (path / CHAIN).is_file() else Run
    file = path / (CHAIN if kind is Chain else SETTINGS)
    folders = sorted(link for link in path.glob("[1-9]-*") if link.is_dir()) if kind is Chain else [path]
    told = [read_json(RunDirectory.find(folder).path / "data.json") for folder in folders]
    plain = encode(decode(kind, read_yaml(file)))  # with settings that an older version did not have
    nearest = _nearest(plain, kind)
    if nearest is None:
        words = ["tilework", "train", ANY, "--config", str(file)]
    elif nearest[0]["command"].startswith("tilework tokenizer train"):
        words = ["tilework", "tokenizer", "train", str(told[0]["train"]), *nearest[1], "--recipe", nearest[0]["name"]]
    else:
        words = ["tilework", "train", nearest[0]["name"], *nearest[1]]
    if words[1] == "train":
        words += ["--data", *(str(one["train"]) for one in told)]
    if any(one["val"] for one in told):
        words += ["--val", *(str(one["val"] or "none") for one in told)]
    if isinstance(start := told[0].get("start"), str) and start:
        words += ["--start", str(path / start)]
    return shlex.join([*words, "--out", "AGAIN"])


def _nearest(plain: dict[str, Any], kind: type[Run | Chain]) -> tuple[Card, list[str]] | None:
    """The recipe that needs the fewest settings to become this run, and these settings."""
    found = []
    for card in cards():
        settings = assignments(card["run"], plain)
        if settings is not None:
            found.append((len(settings), card["name"], card, settings))
    for _, _, card, settings in sorted(found, key=lambda one: one[:2]):
        try:  # what the line would do
            if decode(kind, override(card["run"], settings)) == decode(kind, plain):
                return card, settings
        except TileworkError:
            continue
    return None


def assignments(base: Any, wanted: Any, where: Sequence[str] = ()) -> list[str] | None:
    """Settings KEY=VALUE that turn one plain configuration into another; None if parts are added or taken away."""
    if base == wanted:
        return []
    here = ".".join(where)
    if isinstance(base, dict) and isinstance(wanted, dict):
        if base.get("name") != wanted.get("name") or not base.keys() <= wanted.keys():
            return None
        parts = [assignments(base.get(key), value, (*where, key)) for key, value in wanted.items()]
    elif isinstance(base, list) and isinstance(wanted, list) and any(isinstance(one, dict) for one in (*base, *wanted)):
        if len(base) != len(wanted):
            return None
        parts = [assignments(*pair, (*where, str(i))) for i, pair in enumerate(zip(base, wanted, strict=True))]
    elif isinstance(base, dict) or isinstance(wanted, dict):
        return None
    else:
        return [f"{here}={wanted if isinstance(wanted, str) and wanted else json.dumps(wanted)}"]
    whole = [setting for part in parts if part is not None for setting in part]
    return None if None in parts else whole
