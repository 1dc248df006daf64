"""A shard: header, records, index; every part with its own CRC32C. docs/format.md describes it byte by byte.

B records
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from tilework.core.compiled import in_parts, kernels
from tilework.core.errors import DamageError, InputError
from tilework.core.files import crc32c, write
from tilework.store.codec import KERNELS

MAGIC = b"TILESHRD"
VERSION = 1
HEADER = struct.Struct("<8sIIQQII")  # magic, version, records, first image, bytes of records, width; CRC of these
LARGEST_RECORDS = 1 << 20
LARGEST_BYTES = 1 << 31
USUAL_BYTES = 1 << 28  # where a shard is closed and the next one begun
TOGETHER = 4  # shards fetched at a time
WORTH_A_THREAD = 1 << 18  # bytes


@dataclass(frozen=True)
class ShardEntry:
    """File of a shard, number of its records, and CRC32C of its index, which identifies it."""

    file: str
    records: int
    crc: int


def write_shard(path: Path, records: bytes, sizes: np.ndarray, first: int) -> int:
    """Write a shard of records that lie one after another; returns the CRC32C of its index.

    sizes: (B,); first: number of its first record.
    """
    if len(sizes) > LARGEST_RECORDS or len(records) > LARGEST_BYTES:
        what = f"{len(sizes)} records of {len(records)} bytes do not fit one shard"
        raise InputError(what, "choose fewer images per shard")
    ends = np.cumsum(sizes)
    crcs: np.ndarray = np.empty(len(sizes), "<u4")
    if fast := kernels(KERNELS, len(records)):
        fast.checksums(np.frombuffer(records, np.uint8), ends - sizes, sizes.astype(np.int64), crcs)
    else:
        crcs[:] = [crc32c(records[end - size : end]) for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)]
    same = len(sizes) > 0 and sizes.min() == sizes.max()
    width = 0 if same else 2 if sizes.max(initial=0) < 1 << 16 else 4  # bytes of a size in the index
    index = (sizes.astype(f"<u{width}").tobytes() if width else b"") + crcs.tobytes()
    head = HEADER.pack(MAGIC, VERSION, len(sizes), first, len(records), width, 0)[:-4]
    crc = crc32c(index)
    write(path, head + struct.pack("<I", crc32c(head)) + records + index + struct.pack("<I", crc))
    return crc


def write_shards(
    root: Path,
    folder: str,
    chunks: Iterable[tuple[bytes, np.ndarray]],
    most: int,
    most_bytes: int = USUAL_BYTES,
    first: int = 0,
) -> tuple[ShardEntry, ...]:
    """Write records to shards of at most `most` records and about `most_bytes` bytes.

    chunks: records that lie one after another, and their sizes (B,). How they are cut depends on the records alone.
    first: number of the first record.
    """
    entries: list[ShardEntry] = []
    held, sizes = bytearray(), np.empty(0, np.int64)

    def close() -> None:
        nonlocal held, sizes, first
        file = f"{folder}/{len(entries):05d}.tiles"
        entries.append(ShardEntry(file, len(sizes), write_shard(root / file, bytes(held), sizes, first)))
        held, sizes, first = bytearray(), np.empty(0, np.int64), first + len(sizes)

    for records, lengths in chunks:
        ends = np.concatenate([[0], np.cumsum(lengths)])
        at = 0
        while at < len(lengths):
            fitting = int(np.searchsorted(ends[at:], ends[at] + most_bytes - len(held), side="right")) - 1
            count = min(most - len(sizes), fitting if len(sizes) else max(1, fitting))
            if count > 0:
                held += records[ends[at] : ends[at + count]]
                sizes = np.concatenate([sizes, lengths[at : at + count]])
                at += count
            if count <= 0 or len(sizes) == most:
                close()
    if len(sizes):
        close()
    return tuple(entries)


class Shard:
    """An open shard, memory-mapped; sizes are checked against the file before anything is allocated."""

    def __init__(
        self,
        path: Path,
        first: int,
        records: int | None = None,
        crc: int | None = None,
        file: BinaryIO | None = None,  # what is at the path, where it is open already
    ) -> None:
        self.path = path
        try:
            with file or path.open("rb") as opened:
                self._map = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise DamageError(f"shard {path.name} cannot be opened", f"restore it ({error})") from error
        self.data = np.frombuffer(self._map, np.uint8)
        size, width, records = self._check_header(first, records)
        index = bytes(self._map[HEADER.size + size : -4])
        if struct.unpack("<I", self._map[-4:])[0] != crc32c(index):
            raise DamageError(f"the index of shard {path.name} is damaged", "restore the shard")
        if crc not in (None, crc32c(index)):
            raise DamageError(f"shard {path.name} is not the one the manifest names", "restore it")
        if width:
            self.sizes = np.frombuffer(index, f"<u{width}", records).astype(np.int64)
        else:
            self.sizes = np.full(records, size // max(1, records), np.int64)
        self.crcs = np.frombuffer(index, "<u4", records, offset=width * records)
        if self.sizes.sum() != size:
            raise DamageError(f"the index of shard {path.name} does not add up", "restore the shard")
        self.ends = HEADER.size + np.cumsum(self.sizes)
        self.starts = self.ends - self.sizes

    def _check_header(self, first: int, records: int | None) -> tuple[int, int, int]:
        """Bytes of all records, bytes of each size in the index, and the number of records."""
        name = self.path.name
        if len(self._map) < HEADER.size + 4:
            raise DamageError(f"shard {name} is cut short ({len(self._map)} bytes)", "restore it")
        head = bytes(self._map[: HEADER.size])
        magic, version, count, start, size, width, crc = HEADER.unpack(head)
        if magic != MAGIC:
            raise DamageError(f"{name} is not a shard", "restore it")
        if version != VERSION:
            raise DamageError(f"shard {name} has version {version}, this software reads {VERSION}", "update Tilework")
        if crc != crc32c(head[:-4]):
            raise DamageError(f"the header of shard {name} is damaged", "restore the shard")
        if start != first or records not in (None, count) or count > LARGEST_RECORDS or size > LARGEST_BYTES:
            raise DamageError(f"shard {name} is not the one the manifest names", "restore it")
        if width not in (0, 2, 4) or len(self._map) != HEADER.size + size + (width + 4) * count + 4:
            raise DamageError(f"shard {name} has {len(self._map)} bytes, not what its header says", "restore it")
        return int(size), int(width), int(count)

    def records(self, local: np.ndarray) -> list[bytes]:
        """Some records, each verified against its CRC. local: (B,) indices in this shard."""
        records, bad = self._read(local)
        if bad:
            raise DamageError(f"record {bad[0]} of shard {self.path.name} is damaged", "restore the shard")
        return records

    def copy(self, local: np.ndarray, out: np.ndarray, places: np.ndarray) -> None:
        """Records to their places in an array of bytes, each verified against its CRC. local, places: (B,)."""
        sizes = self.sizes[local]
        if fast := kernels(KERNELS, len(local)):
            starts, crcs, places = self.starts[local], self.crcs[local], np.ascontiguousarray(places)

            def copy(rows: slice) -> int:
                return fast.copy_records(self.data, starts[rows], sizes[rows], crcs[rows], out, places[rows])

            least = WORTH_A_THREAD * len(local) // max(1, int(sizes.sum()))
            if in_parts(copy, len(local), least) < 0:
                return
        for place, record in zip(places.tolist(), self.records(local), strict=True):
            out[place : place + len(record)] = np.frombuffer(record, np.uint8)

    def damaged(self) -> list[int]:
        """Indices of records that differ from their CRC."""
        if fast := kernels(KERNELS, len(self.data)):
            found = np.empty(len(self.crcs), np.uint32)
            fast.checksums(self.data, self.starts, self.sizes, found)
            return np.flatnonzero(found != self.crcs).tolist()
        portions = np.array_split(np.arange(len(self.sizes)), 1 + len(self.sizes) // 4096)
        return [i for portion in portions for i in self._read(portion)[1]]

    def _read(self, local: np.ndarray) -> tuple[list[bytes], list[int]]:
        """Records, and which of them differ from their CRC."""
        data = self._map
        ranges = zip(self.starts[local].tolist(), self.ends[local].tolist(), strict=True)
        records = [data[start:end] for start, end in ranges]
        expected = zip(local.tolist(), records, self.crcs[local].tolist(), strict=True)
        return records, [i for i, record, crc in expected if crc32c(record) != crc]


class Files(Protocol):
    """Files that are not in a local directory."""

    def open(self, name: str) -> BinaryIO:
        """A file by its name in the store, checked; it can be mapped."""


class Shards:
    """Records of many shards under consecutive numbers; each process maps a shard when it first needs it."""

    def __init__(self, root: Path | Files, entries: tuple[ShardEntry, ...]) -> None:
        self._root, self.entries = root, entries
        self.firsts = np.cumsum([0, *(entry.records for entry in entries)])  # first record of each shard, and the end
        self._open: dict[int, Shard] = {}
        self.most_open = 0  # shards; 0: all

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def __getitem__(self, number: int) -> Shard:
        found = self._open.get(number)
        if found is None:
            entry, root = self.entries[number], self._root
            path, file = (
                (root / entry.file, None) if isinstance(root, Path) else (Path(entry.file), root.open(entry.file))
            )
            found = self._open[number] = Shard(path, int(self.firsts[number]), entry.records, entry.crc, file)
        return found

    def _close(self, needed: list[int]) -> None:
        """Close the shards not used for longest, beyond those that may be open and those that are needed now."""
        for number in needed:
            if number in self._open:
                self._open[number] = self._open.pop(number)  # the last one of the dict
        for number in list(self._open)[: max(0, len(self._open) - self.most_open)]:
            if number not in needed:
                self._open.pop(number, None)

    def _gather(self, numbers: list[int]) -> None:
        """Fetch several shards in parallel: a random batch needs nearly all of them."""
        if self.most_open:
            self._close(numbers)
        missing = [number for number in numbers if number not in self._open]
        if len(missing) > 1 and not isinstance(self._root, Path):
            with ThreadPoolExecutor(TOGETHER) as pool:
                list(pool.map(self.__getitem__, missing))

    def find(self, index: np.ndarray) -> Iterator[tuple[np.ndarray, Shard, np.ndarray]]:
        """Records by shard. index: (B,); gives the positions in it, a shard, and the positions in that shard."""
        if index.size and not 0 <= index.min() <= index.max() < len(self):
            raise IndexError(f"records {index.min()}..{index.max()} of {len(self)}")
        owner = np.searchsorted(self.firsts, index, side="right") - 1
        numbers = np.unique(owner).tolist()
        self._gather(numbers)
        if len(numbers) == 1:
            yield np.arange(len(index)), self[numbers[0]], index - self.firsts[numbers[0]]
            return
        for number in numbers:
            rows = np.flatnonzero(owner == number)
            yield rows, self[number], index[rows] - self.firsts[number]

    def gather(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Records in any order, verified, one after another: their bytes with a few more behind, starts, sizes (B,)."""
        found = list(self.find(index))
        sizes: np.ndarray = np.empty(len(index), np.int64)
        for rows, shard, local in found:
            sizes[rows] = shard.sizes[local]
        ends = np.cumsum(sizes)
        starts = ends - sizes
        out = np.zeros((int(ends[-1]) if len(ends) else 0) + 4, np.uint8)
        for rows, shard, local in found:
            shard.copy(local, out, starts[rows])
        return out, starts, sizes
