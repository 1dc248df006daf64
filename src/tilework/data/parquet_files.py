"""Parquet files, read a row group at a time: what a footer claims is bounded before anything is read by it.

Page checksums are verified where the file has them. A lying page can still ask for as much as the format allows one
page, 2 GiB, and a footer that lies about sizes for a value of it in each row decoded in one call; no more is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tilework.core.errors import DamageError, InputError, MachineError
from tilework.core.files import open_plain
from tilework.data.parquet_footer import Chunk, column_chunks

LARGEST_GROUP = 1 << 30  # bytes of a row group once decoded, in the columns that are read
REPEATED, EXPANSION = 1 << 28, 4  # bytes, or times what its footer says, that repeated values may fill in one
ROWS_PER_BYTE = 16  # of the file: more rows than that cannot have names of their own
BATCH_ROWS = 64  # decoded in one call
BATCH_BYTES = 1 << 28  # that those rows may become, if there are several


@dataclass(frozen=True)
class Parquet:
    """A file that is open."""

    path: Path
    file: Any  # pyarrow's ParquetFile
    chunks: list[list[Chunk]]  # columns of each row group


@contextmanager
def open_parquet(path: Path) -> Iterator[Parquet]:
    """A Parquet file; whatever a damaged or hostile one makes pyarrow raise becomes one line."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MachineError("Parquet files need pyarrow", "pip install 'tilework[parquet]'") from error
    try:
        with open_plain(path) as plain:
            told = os.fstat(plain.fileno())
        size, chunks = told.st_size, _chunks(path, told.st_ino, told.st_size, told.st_mtime_ns)
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            if file.metadata.num_rows > ROWS_PER_BYTE * size:
                raise DamageError(f"{path} claims {file.metadata.num_rows} rows in {size} bytes", "restore it")
            if file.num_row_groups != len(chunks):
                raise ValueError("its footer is damaged")
            yield Parquet(path, file, chunks)
    except FileNotFoundError as error:
        raise InputError(f"{path} cannot be read", "there is no such file") from error
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError, MemoryError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DamageError(f"{path} cannot be read as Parquet", f"restore it ({reason})") from error


@lru_cache(maxsize=64)  # a file is opened for each of its row groups
def _chunks(path: Path, *version: int) -> list[list[Chunk]]:
    """The columns of a version of a file."""
    with open_plain(path) as file:
        return column_chunks(file)


def read_group(parquet: Parquet, group: int, columns: Sequence[str]) -> Any:
    """Some columns of a row group as a pyarrow Table, of a bounded size."""
    import pyarrow

    held = 0
    batches = []
    file, rows = parquet.file, parquet.file.metadata.row_group(group).num_rows
    among = [_among(path, columns) for path in _paths(file)]
    read = [chunk for chunk, wanted in zip(parquet.chunks[group], among, strict=True) if wanted]
    claimed = sum(max(chunk.uncompressed_bytes, chunk.values) for chunk in read)
    longest = sum(chunk.uncompressed_bytes for chunk in read if chunk.is_byte_array)
    together = min(BATCH_ROWS, max(1, BATCH_BYTES // max(1, longest)))  # each row may repeat the longest value there is
    most = min(LARGEST_GROUP, max(REPEATED, EXPANSION * claimed))
    for batch in () if claimed > LARGEST_GROUP else file.iter_batches(together, [group], list(columns), False):
        batch = _without_dictionaries(batch)
        held += batch.nbytes
        if held > most:
            break
        batches.append(batch)
    if max(claimed, held) > most:
        what = f"row group {group} of {parquet.path} has {max(claimed, held)} bytes or more once decoded"
        raise InputError(what, f"write it anew in row groups below {most} bytes")
    if (found := sum(map(len, batches))) != rows:
        raise DamageError(f"row group {group} of {parquet.path} has {found} rows, not {rows}", "restore the file")
    return pyarrow.Table.from_batches(batches) if batches else None


def _without_dictionaries(batch: Any) -> Any:
    """Values in place of numbers in a list of them (pandas' categories), which each batch would carry whole."""
    import pyarrow

    if not any(pyarrow.types.is_dictionary(column.type) for column in batch.columns):
        return batch
    columns = [one.dictionary_decode() if pyarrow.types.is_dictionary(one.type) else one for one in batch.columns]
    return pyarrow.RecordBatch.from_arrays(columns, names=batch.schema.names)


def column_values(parquet: Parquet, column: str) -> list[Any]:
    """All values of a small column, as Python objects, bounded as a row group is."""
    values: list[Any] = []
    held = 0
    for group in range(parquet.file.num_row_groups):
        if (table := read_group(parquet, group, [column])) is not None:
            held += table.nbytes
            if held > LARGEST_GROUP:
                raise InputError(f"column '{column}' of more than {LARGEST_GROUP} bytes", "give fewer files at a time")
            values += table.flatten().column(0).to_pylist()
    return values


def has_column(parquet: Parquet, path: str) -> bool:
    """Whether there is a column; 'a.b' is member b of the struct a."""
    return any(_among(column, [path]) for column in _paths(parquet.file))


def class_names(parquet: Parquet) -> tuple[str, ...] | None:
    """Names of the classes of column `label`, where the file has them as Hugging Face's data sets do."""
    try:
        told = json.loads((parquet.file.schema_arrow.metadata or {})[b"huggingface"])
        names = told["info"]["features"]["label"]["names"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return None
    return tuple(map(str, names)) if isinstance(names, list) and names else None


def _paths(file: Any) -> list[str]:
    """Names of all columns, those in others with theirs."""
    return [file.schema.column(i).path for i in range(len(file.schema))]


def _among(path: str, columns: Sequence[str]) -> bool:
    return any(path == column or path.startswith(f"{column}.") for column in columns)
