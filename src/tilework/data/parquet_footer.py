"""What the footer of a Parquet file claims of its columns, read by the format's own rules.

pyarrow's objects for a column chunk end the process where a footer contradicts itself, instead of raising; its readers
raise. So sizes are read here, before its readers see the file.

The footer is a struct of Thrift's compact protocol (parquet.thrift; thrift-compact-protocol.md): integers are varints,
a field is its type and the step to its number, lists say their type and length.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, BinaryIO

MAGIC = b"PAR1"
LARGEST = 1 << 25  # bytes of a footer: of a hundred thousand column chunks
DEEPEST = 32  # structs and lists in one another
BYTE_ARRAYS = (6, 7)  # types whose values have any length, or one that the schema says
STRUCT, LIST, SET, MAP, BINARY, DOUBLE = 12, 9, 10, 11, 8, 7
ROW_GROUPS, COLUMNS, META = 4, 1, 3  # numbers of fields
TYPE, VALUES, UNPACKED = 1, 5, 6  # of a column chunk


@dataclass(frozen=True)
class Chunk:
    """A column of a row group, as the footer has it."""

    values: int
    unpacked: int  # bytes
    any_length: bool  # of its values


def column_chunks(file: BinaryIO) -> list[list[Chunk]]:
    """The columns of each row group; ValueError where the footer does not say them."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - 8))
    tail = file.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != MAGIC or not 0 < length <= end - 8:
        raise ValueError("it has no footer of Parquet")
    if length > LARGEST:
        raise ValueError(f"its footer has {length} bytes: write it anew in larger row groups")
    file.seek(end - 8 - length)
    try:
        groups = _Thrift(file.read(length)).struct(0)[ROW_GROUPS]
        return [[_chunk(column[META]) for column in group[COLUMNS]] for group in groups]
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("its footer is damaged") from error


def _chunk(said: dict[int, Any]) -> Chunk:
    values, unpacked = said[VALUES], said[UNPACKED]
    if min(values, unpacked) < 0:
        raise ValueError(f"its footer claims {values} values in {unpacked} bytes")
    return Chunk(values, unpacked, said[TYPE] in BYTE_ARRAYS)


class _Thrift:
    """Values of the compact protocol, structs as field number -> value."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def struct(self, depth: int) -> dict[int, Any]:
        """Fields up to the end of a struct."""
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            found[number] = head & 15 == 1 if head & 15 in (1, 2) else self._value(head & 15, depth + 1)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if depth > DEEPEST:
            raise ValueError("its footer is too deep")
        if kind == STRUCT:
            return self.struct(depth)
        if kind in (LIST, SET):
            return self._list(depth)
        if kind == BINARY:
            return self._bytes(self._varint())
        if kind == DOUBLE:
            return self._bytes(8)
        if kind == MAP:  # no field of the format is one
            raise ValueError("its footer has a field of an unknown kind")
        return self._byte() if kind in (1, 2, 3) else self._integer()

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._varint()
        if count > len(self.data) - self.at:  # each takes a byte at least
            raise ValueError("its footer is damaged")
        return [self._value(head & 15, depth + 1) for _ in range(count)]

    def _integer(self) -> int:
        value = self._varint()  # zigzag
        return (value >> 1) ^ -(value & 1)

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("its footer is damaged")

    def _byte(self) -> int:
        byte = self.data[self.at]
        self.at += 1
        return byte

    def _bytes(self, length: int) -> bytes:
        part = self.data[self.at : self.at + length]
        if len(part) < length:
            raise IndexError(length)
        self.at += length
        return part
