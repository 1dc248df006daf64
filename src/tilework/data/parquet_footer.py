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

MAGIC, ENCRYPTED = b"PAR1", b"PARE"
LARGEST = 1 << 23  # bytes of a footer: of some thirty thousand column chunks
MOST_VALUES = 1_000_000  # in it, each of which takes a byte at least
DEEPEST = 32  # structs and lists in one another
BYTE_ARRAYS = (6, 7)  # physical types whose values have any length, or one that the schema says
BOOLEANS, INTEGERS = (1, 2), (3, 4, 5, 6)  # kinds of values
DOUBLE, BINARY, LIST, SET, STRUCT = 7, 8, 9, 10, 12
ROW_GROUPS, COLUMNS, META = 4, 1, 3  # numbers of fields
TYPE, VALUES, UNCOMPRESSED = 1, 5, 6  # of a column chunk
Wanted = dict[int, Any]  # fields by number: fields of the structs that they hold, or None for an integer
WANTED: Wanted = {ROW_GROUPS: {COLUMNS: {META: {TYPE: None, VALUES: None, UNCOMPRESSED: None}}}}


@dataclass(frozen=True)
class Chunk:
    """A column of a row group, as the footer has it."""

    values: int
    uncompressed_bytes: int
    is_byte_array: bool  # of any length, or of one that the schema says


def column_chunks(file: BinaryIO) -> list[list[Chunk]]:
    """The columns of each row group; ValueError where the footer does not say them."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - 8))
    tail = file.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] == ENCRYPTED:
        raise ValueError("its footer is encrypted: write it without encryption")
    if tail[4:] != MAGIC or not 0 < length <= end - 8:
        raise ValueError("it has no footer of Parquet")
    if length > LARGEST:
        raise ValueError(f"its footer has {length} bytes: write it anew in larger row groups")
    file.seek(end - 8 - length)
    try:
        groups = _Thrift(file.read(length)).struct(WANTED, 0)[ROW_GROUPS]
        return [[_chunk(column[META]) for column in group[COLUMNS]] for group in groups]
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("its footer is damaged") from error


def _chunk(said: dict[int, Any]) -> Chunk:
    values, uncompressed = said[VALUES], said[UNCOMPRESSED]
    if min(values, uncompressed) < 0:
        raise ValueError(f"its footer claims {values} values in {uncompressed} bytes")
    return Chunk(values, uncompressed, said[TYPE] in BYTE_ARRAYS)


class _Thrift:
    """Values of the compact protocol; what is not wanted is passed over."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.left = data, 0, MOST_VALUES

    def struct(self, wanted: Wanted, depth: int) -> dict[int, Any]:
        """The wanted fields of a struct."""
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            kind = head & 15
            if number in wanted:
                found[number] = self._value(kind, wanted[number], depth + 1)
            elif kind not in BOOLEANS:  # which are in the head itself
                self._pass(kind, depth + 1)
            self._count(1)
        return found

    def _value(self, kind: int, wanted: Wanted | None, depth: int) -> Any:
        if wanted is None and kind in INTEGERS:
            return self._integer()
        if wanted is not None and kind == STRUCT:
            return self.struct(wanted, depth)
        if wanted is not None and kind == LIST:
            kind, count = self._list()
            return [self._value(kind, wanted, depth + 1) for _ in range(count)]
        raise ValueError("its footer is damaged")

    def _pass(self, kind: int, depth: int) -> None:
        if depth > DEEPEST:
            raise ValueError("its footer is too deep")
        if kind in BOOLEANS or kind == INTEGERS[0]:
            self.at += 1
        elif kind in INTEGERS:
            self._varint()
        elif kind == DOUBLE:
            self.at += 8
        elif kind == BINARY:
            length = self._varint()
            self.at += length
        elif kind in (LIST, SET):
            kind, count = self._list()
            for _ in range(count):
                self._pass(kind, depth + 1)
        elif kind == STRUCT:
            while head := self._byte():
                if not head >> 4:
                    self._varint()
                if head & 15 not in BOOLEANS:
                    self._pass(head & 15, depth + 1)
                self._count(1)
        else:  # no field of the format is a map
            raise ValueError("its footer has a field of an unknown kind")

    def _list(self) -> tuple[int, int]:
        """Kind and number of values."""
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._varint()
        self._count(count)
        return head & 15, count

    def _count(self, values: int) -> None:
        self.left -= values
        if self.left < 0 or self.at > len(self.data):
            raise ValueError("its footer is damaged, or has very many values")

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
