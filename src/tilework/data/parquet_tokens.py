"""Codes in Parquet files, read and written, with page checksums.

codebook.safetensors    code vectors, and synonyms where the store has some
00000.parquet           columns key (string), label (int32), codes (fixed-size list of uint16, or int32 beyond 65,536
                        codes: row by row, views one after another); the description under `tilework` in its metadata
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tilework.core.errors import InputError, MachineError
from tilework.core.files import new_directory
from tilework.data.labels import Label
from tilework.data.parquet_files import column_values, has_column, open_parquet, read_group
from tilework.data.token_files import Description, codes_of, describe, unique_keys
from tilework.store import Store

NAME = b"tilework"  # of the description among a file's metadata
COLUMNS = ("codes", "tokens")
SHARD_IMAGES = 1 << 16
DEEPEST = 3  # lists in lists


def write_parquet_tokens(store: Store, out: Path, progress: Callable[[int, int], None] = lambda *step: None) -> None:
    """A folder of Parquet files with the codes of a store; every call to it writes the same rows."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MachineError("Parquet files need pyarrow", "pip install 'tilework[parquet]'") from error
    keys, labels = unique_keys(store), store.column("label").astype(np.int32)
    if any("\udc80" <= letter <= "\udcff" for key in keys for letter in key):
        raise InputError(f"{store.path} has a name that is not Unicode", "Parquet cannot hold it: use --to wds")
    with new_directory(out) as root:
        told = describe(store, root)
        number = pyarrow.uint16() if store.vocabulary <= 1 << 16 else pyarrow.int32()
        columns = {"key": pyarrow.string(), "label": pyarrow.int32(), "codes": pyarrow.list_(number, prod(told.shape))}
        schema = pyarrow.schema(columns, {NAME: told.text()})
        writer: Any = None
        try:
            for index, codes in codes_of(store):
                if index.start % SHARD_IMAGES == 0:
                    if writer is not None:
                        writer.close()
                    path = root / f"{index.start // SHARD_IMAGES:05d}.parquet"
                    writer = parquet.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True)
                lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(codes.ravel()), prod(told.shape))
                part = slice(index.start, index.stop)
                writer.write_table(pyarrow.table([keys[part], labels[part], lists], schema))
                progress(index.stop, len(store))
        finally:
            if writer is not None:
                writer.close()


@dataclass(frozen=True)
class ParquetTokens:
    """Codes in some Parquet files."""

    paths: tuple[Path, ...]
    keys: Sequence[str]
    found: Sequence[Label]
    described: Description | None
    column: str

    @property
    def where(self) -> Path:
        """What messages name."""
        return self.paths[0]

    @staticmethod
    def open(paths: Sequence[Path]) -> ParquetTokens:
        """List some files."""
        keys: list[Any] = []
        found: list[Label] = []
        told: set[bytes | None] = set()
        column = ""
        for path in paths:
            with open_parquet(path) as parquet:
                names = [name for name in COLUMNS if has_column(parquet, name)]
                if not names or column not in ("", names[0]):
                    has = ", ".join(parquet.file.schema_arrow.names[:20])
                    hint = f"it has {has}; for images there is 'tilework tokenize'"
                    raise InputError(f"{path} holds no codes in a column '{column or COLUMNS[0]}'", hint)
                column = names[0]
                told.add((parquet.file.schema_arrow.metadata or {}).get(NAME))
                rows = parquet.file.metadata.num_rows
                found += column_values(parquet, "label") if has_column(parquet, "label") else [None] * rows
                keys += column_values(parquet, "key") if has_column(parquet, "key") else [None] * rows
        if len(told) > 1:
            raise InputError(f"{paths[0].parent} mixes files of several data sets", "give the files of one")
        if not keys:
            raise InputError(f"{paths[0]} holds no codes", "it has no rows")
        if any(isinstance(label, bool) or not isinstance(label, int | str | None) for label in found):
            raise InputError(f"labels in {paths[0]} are neither numbers nor names", "a column of integers is needed")
        if not all(isinstance(key, str) for key in keys) or len(set(keys)) < len(keys):
            keys = [f"{i:0{len(str(len(keys)))}d}" for i in range(len(keys))]
        text = told.pop()
        described = Description.parse(text, paths[0]) if text is not None else None
        return ParquetTokens(tuple(paths), keys, found, described, column)

    def batches(self) -> Iterator[np.ndarray]:
        """Codes of some images at a time, in order."""
        shape = None
        for path in self.paths:
            with open_parquet(path) as parquet:
                for group in range(parquet.file.num_row_groups):
                    table = read_group(parquet, group, [self.column])
                    if table is None:
                        continue
                    ids = np.concatenate([_array(path, chunk) for chunk in table.column(0).chunks])
                    shape = shape or ids.shape[1:]
                    if ids.shape[1:] != shape or not ids.size or ids.ndim < 2:
                        raise InputError(
                            f"{path} has codes of shape {ids.shape[1:]}", f"{shape} are needed in all rows"
                        )
                    yield ids


def _array(path: Path, values: Any, depth: int = 0) -> np.ndarray:
    """Lists of integers, or lists of such lists, all of one length, as an array."""
    from pyarrow import compute, types

    if values.null_count:
        raise InputError(f"{path} has rows without codes", "remove them")
    if types.is_integer(values.type):
        return np.asarray(values.to_numpy(zero_copy_only=False))
    listed = types.is_list(values.type) or types.is_large_list(values.type) or types.is_fixed_size_list(values.type)
    if not listed or depth == DEEPEST:
        raise InputError(f"{path} has codes of type {str(values.type)[:60]}", "lists of integers are needed")
    lengths = compute.unique(compute.list_value_length(values)).to_pylist()
    if len(lengths) > 1 or lengths == [0]:
        raise InputError(f"{path} has rows of different lengths", "all images need as many codes")
    inner = _array(path, values.flatten(), depth + 1)
    return inner.reshape(len(values), *lengths, *inner.shape[1:])
