"""Columns: one value per image, beside the shards of codes.

An array or a list of texts is one safetensors file. Byte strings and arrays of varying length are records in shards of
their own, so that each can be read and checked alone.

N images
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from safetensors.numpy import load, save

from tilework.core.errors import DamageError, InputError
from tilework.core.files import write
from tilework.store.shard import Files, ShardEntry, Shards, write_shards

Kind = Literal["array", "text", "bytes", "ragged"]
Values = np.ndarray | Sequence[Any]  # numbers; or texts, byte strings, or arrays of one type and form
RECORDS = 1 << 16  # of a shard


@dataclass(frozen=True)
class ColumnEntry:
    """Name and storage format of a column."""

    name: str
    kind: Kind
    dtype: str = ""  # of a ragged column's arrays
    shape: tuple[int, ...] = ()  # of their entries, after the first dimension
    shards: tuple[ShardEntry, ...] = ()  # of bytes and ragged columns

    @property
    def file(self) -> str:
        """File of an array or text column."""
        return f"columns/{self.name}.safetensors"


def entry_of(name: str, values: Values) -> ColumnEntry:
    """Storage format for values; refuses values that no column can hold."""
    if not name.isidentifier():
        raise InputError(f"'{name}' is not a column name", "use letters, digits and _")
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in "biuf" or values.dtype.itemsize > 8 or not values.ndim:
            raise InputError(f"column '{name}' is an array of {values.dtype}", "give numbers, texts, bytes or arrays")
        return ColumnEntry(name, "array")
    if all(isinstance(value, str) for value in values):
        return ColumnEntry(name, "text")
    if all(isinstance(value, bytes) for value in values):
        return ColumnEntry(name, "bytes")
    forms = {(value.dtype.newbyteorder("<").str, value.shape[1:]) if _is_row(value) else None for value in values}
    if len(forms) != 1 or None in forms:
        raise InputError(f"column '{name}' mixes kinds of values", "give texts, bytes, or arrays of one type and form")
    dtype, shape = forms.pop()  # type: ignore[misc]
    if 0 in shape:
        raise InputError(f"column '{name}' has arrays of {shape}", "every dimension but the first must be positive")
    return ColumnEntry(name, "ragged", dtype, tuple(map(int, shape)))


def _is_row(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim > 0 and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8


def pack_values(values: Values) -> dict[str, np.ndarray]:
    """Values of any kind as flat tensors."""
    if isinstance(values, np.ndarray):
        return {"values": np.ascontiguousarray(values)}
    kind = entry_of("x", values).kind
    if kind == "ragged":
        lengths = [len(value) for value in values]
        return {"ragged": np.concatenate(list(values)), "offsets": np.cumsum([0, *lengths]).astype(np.int64)}
    try:
        parts = [v.encode("utf-8", "surrogateescape") if isinstance(v, str) else bytes(v) for v in values]
    except UnicodeEncodeError as error:
        raise InputError("a text column holds text that is not Unicode", str(error)) from error
    offsets = np.cumsum([0, *map(len, parts)]).astype(np.int64)
    return {kind: np.frombuffer(b"".join(parts), np.uint8), "offsets": offsets}


def unpack_values(tensors: dict[str, np.ndarray]) -> Any:
    """Inverse of `pack_values`."""
    if "values" in tensors:
        if not tensors["values"].ndim:
            raise ValueError("it holds a single value")
        return tensors["values"]
    whole = tensors["ragged" if "ragged" in tensors else "text" if "text" in tensors else "bytes"]
    offsets = tensors["offsets"]
    if offsets.dtype != np.int64 or offsets.ndim != 1 or not offsets.size or not whole.ndim:
        raise ValueError("its offsets have another type or shape")
    if offsets[0] != 0 or offsets[-1] != len(whole) or (offsets[1:] < offsets[:-1]).any():
        raise ValueError("its offsets do not fit the values")
    cuts = list(pairwise(offsets.tolist()))
    if "ragged" in tensors:
        return [whole[a:b] for a, b in cuts]
    if whole.dtype != np.uint8 or whole.ndim != 1:
        raise ValueError("no bytes")
    data = whole.tobytes()
    parts = [data[a:b] for a, b in cuts]
    return [part.decode("utf-8", "surrogateescape") for part in parts] if "text" in tensors else parts


def pack_columns(columns: Mapping[str, Values]) -> dict[str, np.ndarray]:
    """Columns of some images as flat tensors, named COLUMN/PART."""
    return {f"{name}/{part}": x for name, values in columns.items() for part, x in pack_values(values).items()}


def unpack_columns(tensors: dict[str, np.ndarray]) -> dict[str, Values]:
    """Inverse of `pack_columns`."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, tensor in sorted(tensors.items()):
        column, _, part = name.partition("/")
        found.setdefault(column, {})[part] = tensor
    return {name: unpack_values(parts) for name, parts in found.items()}


def join_values(portions: Sequence[Values]) -> Values:
    """Concatenate chunks of a column."""
    if isinstance(portions[0], np.ndarray):
        return np.concatenate(portions)
    return [value for portion in portions for value in portion]


def take_values(values: Values, index: np.ndarray) -> Values:
    """Values of some images. index: (B,)."""
    if isinstance(values, np.ndarray):
        return values[index]
    if isinstance(values, RecordColumn):
        return values.take(index)
    return [values[i] for i in index.tolist()]


def pack_column(values: Values) -> bytes:
    """An array or texts as the bytes of a safetensors file."""
    return bytes(save(pack_values(values)))


def unpack_column(data: bytes, kind: Kind | None = None) -> Any:
    """The values of a safetensors file: an array, or a list of texts."""
    tensors = load(data)
    if kind and set(tensors) != ({"values"} if kind == "array" else {"text", "offsets"}):
        raise ValueError(f"it is not a column of kind {kind}")
    return unpack_values(tensors)


def write_values(path: Path, count: int, portions: Callable[[], Iterable[Values]]) -> None:
    """Write an array or texts, given in portions, as `pack_column` would whole. count: of all images.

    portions: called for each pass over them.
    """
    first = next(iter(portions()))
    if isinstance(first, np.ndarray):
        shape = (count, *first.shape[1:])
        head = {"values": (first.dtype, shape)}
        write(path, _tensor_file(head, (np.ascontiguousarray(part).tobytes() for part in portions())))
        return

    def lengths() -> Iterable[np.ndarray]:
        return (np.diff(pack_values(part)["offsets"]) for part in portions())

    def data() -> Iterable[bytes]:
        end = 0
        yield bytes(8)
        for part in lengths():
            ends = end + np.cumsum(part)
            end = int(ends[-1]) if len(ends) else end
            yield ends.astype("<i8").tobytes()
        for texts in portions():
            yield pack_values(texts)["text"].tobytes()

    size = sum(int(part.sum()) for part in lengths())
    write(
        path,
        _tensor_file({"offsets": (np.dtype(np.int64), (count + 1,)), "text": (np.dtype(np.uint8), (size,))}, data()),
    )


def _tensor_file(tensors: dict[str, tuple[np.dtype[Any], tuple[int, ...]]], data: Iterable[bytes]) -> Iterable[bytes]:
    """A safetensors file in portions: its header, as the library writes it, then the tensors' bytes."""
    head, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + dtype.itemsize * prod(shape)
        kind = "BOOL" if dtype.kind == "b" else f"{dtype.kind.upper()}{8 * dtype.itemsize}"
        head[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    yield from data


def write_column(root: Path, entry: ColumnEntry, values: Iterable[Values]) -> ColumnEntry:
    """Write byte strings or ragged arrays, given in portions, as shards; returns the entry that names them."""

    def chunks() -> Iterable[tuple[bytes, np.ndarray]]:
        for portion in values:
            if entry.kind == "ragged":
                records = [np.ascontiguousarray(value, entry.dtype).tobytes() for value in portion]
            else:
                records = [bytes(value) for value in portion]
            yield b"".join(records), np.array([len(record) for record in records], np.int64)

    shards = write_shards(root, f"columns/{entry.name}", chunks(), RECORDS)
    return ColumnEntry(entry.name, entry.kind, entry.dtype, entry.shape, shards)


class RecordColumn(Sequence[Any]):
    """Byte strings or arrays of varying length, each read on access and checked."""

    def __init__(self, root: Path | Files, entry: ColumnEntry) -> None:
        self._entry = entry
        self._shards = Shards(root, entry.shards)

    def __len__(self) -> int:
        return len(self._shards)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        if not -len(self) <= index < len(self):
            raise IndexError(f"value {index} of {len(self)}")
        return self.take(np.array([index % len(self)]))[0]

    def take(self, index: np.ndarray) -> list[Any]:
        """Values of any images. index: (B,)."""
        out: list[Any] = [None] * len(index)
        for rows, shard, local in self._shards.find(np.asarray(index, np.int64)):
            for row, record in zip(rows.tolist(), shard.records(local), strict=True):
                out[row] = self._value(record)
        return out

    def _value(self, record: bytes) -> Any:
        if self._entry.kind == "bytes":
            return record
        try:
            return np.frombuffer(record, self._entry.dtype).reshape(-1, *self._entry.shape)
        except (ValueError, TypeError) as error:
            what = f"a value of column '{self._entry.name}' has another size than its entry says"
            raise DamageError(what, "restore the store from a copy") from error
