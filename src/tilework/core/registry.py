"""Registries: entries that users select by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from tilework.core.errors import ConfigError

T = TypeVar("T")
FEW = 40  # names that a line can hold


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint with the closest known name, and all names if there are few; else the closest few."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if len(known) <= FEW:
        return (f"did you mean '{close[0]}'? " if close else "") + f"known: {', '.join(known)}"
    if close:
        return f"did you mean '{close[0]}'?"
    return f"closest of {len(known)}: {', '.join(difflib.get_close_matches(name, known, n=5, cutoff=0.0))}"


class Registry(Generic[T]):
    """A table of named entries, filled by decorator."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def add(self, name: str) -> Callable[[T], T]:
        """Decorator that registers an entry under a name."""

        def register(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.kind} '{name}' is registered twice")
            self._entries[name] = entry
            return entry

        return register

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            raise ConfigError(f"unknown {self.kind} '{name}'", nearest(name, self._entries))
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def name_of(self, entry: T) -> str:
        """The name an entry is registered under."""
        return next(name for name, known in self._entries.items() if known is entry)
