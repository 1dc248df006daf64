"""Images inside Parquet files: column `image` (bytes, or a struct with them), `label` beside it.

N images | G row groups
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from tilework.core.errors import InputError
from tilework.data.image_files import ImageBytes
from tilework.data.labels import Label, number_labels
from tilework.data.parquet_files import Parquet, class_names, column_values, has_column, open_parquet, read_group
from tilework.data.source import Stream

HELD = 3  # row groups in memory


class ParquetImages:
    """Images of Parquet files, in the order of their rows."""

    def __init__(
        self,
        paths: Sequence[Path],
        keys: Sequence[str],
        labels: np.ndarray,  # (N,) int64
        classes: Sequence[str],
        groups: np.ndarray,  # (G, 3) int64: number of the file, of the row group in it, of its first image
        column: str,
    ) -> None:
        self.paths, self.keys, self.labels, self.classes = tuple(paths), tuple(keys), labels, tuple(classes)
        self._groups, self._column = groups, column
        self._held: OrderedDict[int, Any] = OrderedDict()
        self._lock = Lock()
        self._most = HELD

    @property
    def stream(self) -> Stream:
        """Row groups: each is read as a whole, so they are best read one after another."""
        sizes = np.diff(self._groups[:, 2], append=len(self))
        return Stream(sizes, True, False, self._keep)

    def _keep(self, groups: int) -> None:
        self._most = max(HELD, groups // 2)  # a lane needs the one that it is in

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.paths, self.keys, self.labels, self.classes, self._groups, self._column)

    @staticmethod
    def open(paths: Sequence[Path], classes: Sequence[str] | None = None) -> ParquetImages:
        """List some files; with `classes`, number them as given and refuse others."""
        keys: list[Any] = []
        found: list[Label] = []
        groups: list[tuple[int, int, int]] = []
        forms: set[tuple[str, tuple[str, ...] | None]] = set()
        for number, path in enumerate(paths):
            with open_parquet(path) as parquet:
                form = next((name for name in ("image.bytes", "image") if has_column(parquet, name)), None)
                if form is None or not _holds_bytes(parquet.file, form):
                    has = ", ".join(parquet.file.schema_arrow.names[:20])
                    raise InputError(f"{path} has no images in a column 'image'", f"bytes are needed; it has {has}")
                forms.add((form, class_names(parquet)))
                first = len(found)
                for group in range(parquet.file.num_row_groups):
                    groups.append((number, group, first))
                    first += parquet.file.metadata.row_group(group).num_rows
                labelled, rows = has_column(parquet, "label"), first - len(found)
                found += _labels(path, column_values(parquet, "label")) if labelled else [None] * rows
                keys += _keys(parquet, rows)
        if not found:
            raise InputError(f"{paths[0]} holds no images", "it has no rows")
        if len(forms) > 1:
            raise InputError(f"{paths[0].parent} mixes files of different columns or classes", "give files of one kind")
        if None in keys or len(set(keys)) < len(keys) or not all(map(str.isprintable, keys)):
            keys = [f"{i:0{len(str(len(keys)))}d}" for i in range(len(keys))]
        column, names = forms.pop()
        labels, names = number_labels(str(paths[0].parent), found, names, classes)
        return ParquetImages(paths, keys, labels, names, np.array(groups, np.int64), column)

    def __len__(self) -> int:
        return len(self.labels)

    def key(self, index: int) -> str:
        """The name of one image."""
        return self.keys[index]

    def files(self, index: Sequence[int]) -> Iterator[ImageBytes]:
        """The files of some images, one at a time; a missing one is empty."""
        places = np.searchsorted(self._groups[:, 2], np.asarray(index), "right") - 1
        for i, group in zip(index, places.tolist(), strict=True):
            value = self._values(group)[int(i - self._groups[group, 2])].as_py()
            yield ImageBytes(value or b"", self.key(i))

    def _values(self, group: int) -> Any:
        """Encoded images of a row group, kept while its neighbours are asked for."""
        with self._lock:
            if group not in self._held:
                number, inside, _ = self._groups[group].tolist()
                with open_parquet(self.paths[number]) as parquet:
                    # by name: another column may be called image.bytes
                    images = read_group(parquet, inside, [self._column]).column("image")
                    self._held[group] = images.flatten()[0] if self._column == "image.bytes" else images
                while len(self._held) > self._most:
                    self._held.popitem(last=False)
            self._held.move_to_end(group)
            return self._held[group]


def _holds_bytes(file: Any, form: str) -> bool:
    import pyarrow

    kind = file.schema_arrow.field("image").type
    if form == "image.bytes":
        if not pyarrow.types.is_struct(kind):
            return False
        kind = kind.field("bytes").type
    return bool(pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind))


def _labels(path: Path, values: list[Any]) -> list[Label]:
    if any(isinstance(value, bool) or not isinstance(value, int | str | None) for value in values):
        raise InputError(f"labels in {path} are neither numbers nor names", "a column of integers is needed")
    return values


def _keys(parquet: Parquet, rows: int) -> list[Any]:
    """Column `key`, else the paths that Hugging Face keeps beside the bytes, else nothing."""
    for column in ("key", "image.path"):
        if has_column(parquet, column):
            return [value if isinstance(value, str) else None for value in column_values(parquet, column)]
    return [None] * rows
