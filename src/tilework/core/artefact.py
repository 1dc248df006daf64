"""Artefacts: trained or prepared inputs that a run needs beside its data (a tokenizer, a TokenAdapt, label maps).

A settings class declares a field for the directory, `adapter: str = artefact("adapter")`; the command line option
`--adapter DIR` fills every field declared so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from tilework.core.location import PathOrHub

C = TypeVar("C")
KEY = "artefact"


def artefact(kind: str) -> Any:
    """Dataclass field for the directory of an artefact; empty until it is given."""
    return dataclasses.field(default="", metadata={KEY: kind})


def declared(config: Any) -> set[str]:
    """Kinds of artefacts that a configuration has fields for."""
    return {kind for kind, _ in _fields(config)}


def _fields(config: Any) -> Iterator[tuple[str, str]]:
    """Kind and directory of every artefact field in a configuration."""
    if isinstance(config, tuple | list):
        for item in config:
            yield from _fields(item)
    elif dataclasses.is_dataclass(config) and not isinstance(config, type):
        for field in dataclasses.fields(config):
            value = getattr(config, field.name)
            if KEY in field.metadata:
                yield field.metadata[KEY], value
            yield from _fields(value)


def given(config: Any, kind: str) -> str:
    """Directory of a kind of artefact in a configuration; empty if it was not given."""
    return next((path for known, path in _fields(config) if known == kind and path), "")


def give(config: C, paths: Mapping[str, PathOrHub]) -> C:
    """The same configuration with directories by kind where its parts declare them."""
    equipped: C = _given(config, paths) if paths else config
    return equipped


def _given(config: Any, paths: Mapping[str, PathOrHub]) -> Any:
    if isinstance(config, tuple):
        items = tuple(_given(item, paths) for item in config)
        return config if all(new is old for new, old in zip(items, config, strict=True)) else items
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        return config
    changed = {}
    for field in dataclasses.fields(config):
        old = getattr(config, field.name)
        kind = str(field.metadata.get(KEY, ""))
        new = str(paths[kind]) if kind in paths else _given(old, paths)
        if new is not old:
            changed[field.name] = new
    return dataclasses.replace(config, **changed) if changed else config
