"""Columns of a data set by name: what finds their values, and data that carry them along.

An objective names the columns that it needs; each kind of column registers how it is found for a store or a folder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tilework.core.location import Location
from tilework.core.registry import Registry
from tilework.data.source import Source


class ColumnValues(Protocol):
    """The values of a column, found but not read."""

    def attach(self, source: Source, name: str) -> Source:
        """The same data with the column in every batch. name: of the data, for messages."""


@dataclass(frozen=True)
class ColumnKind:
    """How a column is found."""

    artefact: str  # kind of the directory that holds it beside images, and the option that names it
    find: Callable[[Location, str], ColumnValues]  # data, and that directory or ""; refuses data that lack it


column_kinds: Registry[ColumnKind] = Registry("column")
