"""Paths of many files in one piece: their text and 8 bytes for each, where a Path takes 350.

N files
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np

LONGEST, DEEPEST = 255, 2048  # bytes of a name that file systems take, and of folders and name together


def lies_below(name: str) -> bool:
    """Whether a name out of an untrusted list can be that of a file below a folder."""
    try:
        path = os.fsencode(name)
    except UnicodeEncodeError:  # half a character
        return False
    parts = path.split(b"/")
    fits = max(map(len, parts)) <= LONGEST and len(path) <= DEEPEST and not {*parts} <= {b"", b"."}
    return fits and parts[0] != b"" and b".." not in parts and b"\0" not in path


class FileList(Sequence[Path]):
    """Files below a folder by their names, which are paths as seen from it; a name may also be a whole path."""

    def __init__(self, root: Path, names: Iterable[str]) -> None:
        text, ends = bytearray(), array("q", [0])
        for name in names:
            text += os.fsencode(name)
            ends.append(len(text))
        self.root, self._text, self._ends = root, text, ends

    @staticmethod
    def of(root: Path, paths: Iterable[Path]) -> FileList:
        """Those given."""
        below = ((path.relative_to(root) if path.is_relative_to(root) else path.absolute()) for path in paths)
        return FileList(root, (path.as_posix() for path in below))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def name(self, index: int) -> str:
        """Of one file, with '/' between its parts."""
        index = range(len(self))[index]
        return os.fsdecode(bytes(self._text[self._ends[index] : self._ends[index + 1]]))

    @overload
    def __getitem__(self, index: int) -> Path: ...
    @overload
    def __getitem__(self, index: slice) -> FileList: ...
    def __getitem__(self, index: int | slice) -> Path | FileList:
        if isinstance(index, slice):
            return self.take(range(*index.indices(len(self))))
        return self.root / self.name(index)

    def __iter__(self) -> Iterator[Path]:
        return (self[i] for i in range(len(self)))

    def take(self, numbers: Iterable[int] | np.ndarray) -> FileList:
        """The files at the positions given."""
        return FileList(self.root, (self.name(int(i)) for i in numbers))
