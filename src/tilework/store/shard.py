"""A shard: header, records, index; every part with its own CRC32C. docs/format.md describes it byte by byte.

Version 2 is written, versions 1 and 2 are read. Version 1 has a checksum for each record, version 2 one for each group
of up to 16 records that follow each other: reading one of them checks the whole group.

B records | G groups
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from tilework.core.compiled import in_parts, kernels
from tilework.core.errors import DamageError, InputError
from tilework.core.files import crc32c, open_plain, write
from tilework.store.codec import KERNELS

MAGIC = b"TILESHRD"
VERSION = 2
HEADER_1 = struct.Struct("<8sIIQQII")  # magic, version, records, first image, bytes of records, width; CRC of these
HEADER = struct.Struct("<8sIIQQIIII")  # the same to the bytes, smallest size, bytes of sizes, records of a group; CRC
HEADERS = {1: HEADER_1, 2: HEADER}
GROUPS = (16, 8, 4, 2, 1)
CHECKED_BYTES = 1 << 11  # of a group, about: what reading one record of it checks
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
    group = next((g for g in GROUPS if g * len(records) <= CHECKED_BYTES * len(sizes)), 1)
    edges = group_edges(np.cumsum(sizes), group)
    crcs: np.ndarray = np.empty(len(edges) - 1, "<u4")
    if fast := kernels(KERNELS, len(records)):
        fast.checksums(np.frombuffer(records, np.uint8), edges[:-1], np.diff(edges), crcs)
    else:
        crcs[:] = [crc32c(records[start:end]) for start, end in pairwise(edges.tolist())]
    smallest = int(sizes.min(initial=LARGEST_BYTES)) if len(sizes) else 0
    packed = pack_sizes(sizes - smallest)
    index = packed + crcs.tobytes()
    head = HEADER.pack(MAGIC, VERSION, len(sizes), first, len(records), smallest, len(packed), group, 0)[:-4]
    crc = crc32c(index)
    write(path, head + struct.pack("<I", crc32c(head)) + records + index + struct.pack("<I", crc))
    return crc


def group_edges(ends: np.ndarray, group: int) -> np.ndarray:
    """Where groups of records begin, and the end of the last. ends: (B,) of records; returns (G + 1,) int64."""
    whole, rest = ends[group - 1 :: group], ends[len(ends) - len(ends) % group :]
    return np.concatenate([[0], whole, rest[-1:]]).astype(np.int64)


def pack_sizes(beyond: np.ndarray) -> bytes:
    """What sizes have beyond the smallest: lowest bytes of all, next bytes, ..., deflated; nothing if all are 0."""
    planes = beyond.astype("<u4").view(np.uint8).reshape(-1, 4).T
    return zlib.compress(planes.tobytes(), 9) if beyond.any() else b""


def unpack_sizes(packed: bytes, count: int) -> np.ndarray:
    """(B,) int64; raises ValueError or zlib.error, and never allocates more than the sizes take."""
    if not packed:
        return np.zeros(count, np.int64)
    unpacker = zlib.decompressobj()
    raw = unpacker.decompress(packed, 4 * count + 1)
    if len(raw) != 4 * count or not unpacker.eof or unpacker.unused_data:
        raise ValueError("sizes")
    return np.frombuffer(raw, np.uint8).reshape(4, count).T.copy().view("<u4")[:, 0].astype(np.int64)


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
            with file or open_plain(path) as opened:
                self._map = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise DamageError(f"shard {path.name} cannot be opened", f"restore it ({error})") from error
        self.data = np.frombuffer(self._map, np.uint8)
        head, size, records, index_bytes = self._check_header(first, records)
        index = bytes(self._map[head + size : -4])
        if struct.unpack("<I", self._map[-4:])[0] != crc32c(index):
            raise DamageError(f"the index of shard {path.name} is damaged", "restore the shard")
        if crc not in (None, crc32c(index)):
            raise DamageError(f"shard {path.name} is not the one the manifest names", "restore it")
        try:
            ends = head + np.cumsum(self._read_sizes(index[:index_bytes], size, records))
        except (ValueError, zlib.error) as error:
            raise DamageError(f"the index of shard {path.name} does not add up", "restore the shard") from error
        # what stays in memory: 4 bytes of a record, 4 of a group
        self.crcs = np.frombuffer(index, "<u4", offset=index_bytes).copy()
        self._bounds = np.concatenate([[head], ends]).astype(np.uint32)  # (B + 1,); LARGEST_BYTES fit

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @property
    def index_bytes(self) -> int:
        """Memory of what is known of the records."""
        return int(self._bounds.nbytes + self.crcs.nbytes)

    def starts(self, local: np.ndarray) -> np.ndarray:
        """Where records begin in the file, (B,) int64. local: (B,) indices in this shard."""
        return self._bounds[local].astype(np.int64)

    def sizes(self, local: np.ndarray) -> np.ndarray:
        """Bytes of records, (B,) int64."""
        return self._bounds[local + 1].astype(np.int64) - self._bounds[local]

    def _check_header(self, first: int, records: int | None) -> tuple[int, int, int, int]:
        """Bytes of the header and of all records, the number of records, and the bytes of their sizes in the index."""
        name = self.path.name
        if len(self._map) < HEADER_1.size + 4:
            raise DamageError(f"shard {name} is cut short ({len(self._map)} bytes)", "restore it")
        magic, self.version = struct.unpack_from("<8sI", self._map)
        if magic != MAGIC:
            raise DamageError(f"{name} is not a shard", "restore it")
        if self.version not in HEADERS:
            what = f"shard {name} has version {self.version}, this software reads 1 and 2"
            raise DamageError(what, "update Tilework")
        form = HEADERS[self.version]
        head = bytes(self._map[: form.size])
        if len(head) < form.size or struct.unpack("<I", head[-4:])[0] != crc32c(head[:-4]):
            raise DamageError(f"the header of shard {name} is damaged", "restore the shard")
        _, _, count, start, size, *rest, _ = form.unpack(head)
        if start != first or records not in (None, count) or count > LARGEST_RECORDS or size > LARGEST_BYTES:
            raise DamageError(f"shard {name} is not the one the manifest names", "restore it")
        if self.version == 1:
            (self._width,), self._smallest, self.group = rest, 0, 1
            index_bytes = self._width * count
        else:
            self._width, (self._smallest, index_bytes, self.group) = 0, rest
        whole = self._width in (0, 2, 4) and self.group in GROUPS
        if not whole or len(self._map) != form.size + size + index_bytes + 4 * -(-count // self.group) + 4:
            raise DamageError(f"shard {name} has {len(self._map)} bytes, not what its header says", "restore it")
        return form.size, int(size), int(count), int(index_bytes)

    def _read_sizes(self, index: bytes, size: int, records: int) -> np.ndarray:
        """Sizes of the records, (B,) int64; raises if they do not add up."""
        if self._width:
            sizes = np.frombuffer(index, f"<u{self._width}", records).astype(np.int64)
        elif self.version == 1:
            sizes = np.full(records, size // max(1, records), np.int64)
        else:
            sizes = self._smallest + unpack_sizes(index, records)
        if sizes.sum() != size:
            raise ValueError("sizes")
        self.largest = int(sizes.max(initial=0))
        return sizes

    def find(self, local: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where records start, and their sizes, (B,) both. Verified against their CRC, each with all of its group.

        local: (B,) indices in this shard.
        """
        if fast := kernels(KERNELS, len(local)):
            local, places = np.ascontiguousarray(local), np.empty((2, len(local)), np.int64)
            starts, sizes = places

            def find(rows: slice) -> int:
                shard = self.data, self._bounds, self.crcs, self.group
                return fast.find_records(*shard, local[rows], starts[rows], sizes[rows])

            least = WORTH_A_THREAD * len(self) // max(1, len(self.data) * self.group)
            if in_parts(find, len(local), least) < 0:
                return starts, sizes
        groups = np.unique(local // self.group)
        if bad := [k for k, crc in zip(groups.tolist(), self._checksums(groups), strict=True) if crc != self.crcs[k]]:
            raise DamageError(f"{self._named(bad[0])} of shard {self.path.name} is damaged", "restore the shard")
        return self.starts(local), self.sizes(local)

    def records(self, local: np.ndarray) -> list[bytes]:
        """Some records, verified. local: (B,) indices in this shard."""
        ranges = zip(*(part.tolist() for part in self.find(local)), strict=True)
        return [self._map[start : start + size] for start, size in ranges]

    def room(self, local: np.ndarray) -> int:
        """Bytes that are enough for some records. local: (B,) indices in this shard."""
        even = self.largest * len(self) <= 2 * len(self.data)
        return len(local) * self.largest if even else int(self.sizes(local).sum())

    def copy(self, local: np.ndarray, out: np.ndarray, at: int) -> np.ndarray:
        """Records one after another to an array of bytes, verified. Returns their starts there and sizes, (2, B) int64.

        local: (B,) indices in this shard; at: where the first one goes.
        """
        if fast := kernels(KERNELS, len(local)):
            places, local = np.empty((2, len(local)), np.int64), np.ascontiguousarray(local)
            shard = self.data, self._bounds, self.crcs, self.group
            if fast.copy_records(*shard, local, out, at, *places) < 0:
                return places
        _, sizes = self.find(local)
        starts = at + np.cumsum(sizes) - sizes
        for start, record in zip(starts.tolist(), self.records(local), strict=True):
            out[start : start + len(record)] = np.frombuffer(record, np.uint8)
        return np.stack([starts, sizes])

    def damaged(self) -> list[str]:
        """Records, or groups of them, that differ from their CRC."""
        if fast := kernels(KERNELS, len(self.data)):
            found = np.empty(len(self.crcs), np.uint32)
            edges = self._edges(np.arange(len(self.crcs) + 1))
            fast.checksums(self.data, edges[:-1], np.diff(edges), found)
        else:
            found = np.array(self._checksums(np.arange(len(self.crcs))), np.uint32)
        return [self._named(k) for k in np.flatnonzero(found != self.crcs).tolist()]

    def _edges(self, groups: np.ndarray) -> np.ndarray:
        """Where groups begin; the one behind the last begins at its end."""
        return self._bounds[np.minimum(groups * self.group, len(self))].astype(np.int64)

    def _checksums(self, groups: np.ndarray) -> list[int]:
        edges = zip(self._edges(groups).tolist(), self._edges(groups + 1).tolist(), strict=True)
        return [crc32c(self._map[start:end]) for start, end in edges]

    def _named(self, group: int) -> str:
        """A group for people."""
        first, last = group * self.group, min((group + 1) * self.group, len(self)) - 1
        return f"record {first}" if first == last else f"one of records {first} to {last}"


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
            raise IndexError(f"images or records {index.min()}..{index.max()} of {len(self)}")
        if len(self.entries) == 1:
            self._gather([0])
            yield np.arange(len(index)), self[0], index
            return
        order = np.argsort(index, kind="stable")
        ordered = index[order]
        edges = np.searchsorted(ordered, self.firsts)
        numbers = np.flatnonzero(np.diff(edges)).tolist()
        self._gather(numbers)
        for number in numbers:
            here = slice(edges[number], edges[number + 1])
            yield order[here], self[number], ordered[here] - self.firsts[number]

    def gather(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Records in any order, verified: an array that holds them with a few more bytes behind, starts, sizes (B,)."""
        found = list(self.find(index))
        places = np.empty((2, len(index)), np.int64)
        if len(found) == 1:  # where they are
            rows, shard, local = found[0]
            places[:, rows] = shard.find(local)
            return shard.data, *places
        room = [0, *accumulate(shard.room(local) for _, shard, local in found)]
        out = np.empty(room[-1] + 4, np.uint8)

        def copy(parts: slice) -> int:
            for at, (rows, shard, local) in zip(room[parts], found[parts], strict=False):
                places[:, rows] = shard.copy(local, out, at)
            return -1

        in_parts(copy, len(found), WORTH_A_THREAD * len(found) // max(1, room[-1]))
        out.flags.writeable = False  # as what is mapped: kernels are compiled once
        return out, *places
