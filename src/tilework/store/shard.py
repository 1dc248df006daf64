"""A shard: header, records, index; every part with its own CRC32C. docs/format.md describes it byte by byte."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import numpy as np

from tilework.core.errors import DamageError, InputError
from tilework.core.files import crc32c, write

MAGIC = b"TILESHRD"
VERSION = 1
HEADER = struct.Struct("<8sIIQQII")  # magic, version, records, first image, bytes of records, width; CRC of these
LARGEST_RECORDS = 1 << 20
LARGEST_BYTES = 1 << 31


def write_shard(path: Path, records: bytes, sizes: np.ndarray, first: int) -> None:
    """Write a shard of records that lie one after another. sizes: (B,); first: number of its first image."""
    if len(sizes) > LARGEST_RECORDS or len(records) > LARGEST_BYTES:
        raise InputError(f"{len(sizes)} records of {len(records)} bytes for one shard", "choose fewer images per shard")
    ends = np.cumsum(sizes)
    crcs = [crc32c(records[end - size : end]) for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)]
    width = 2 if sizes.max(initial=0) < 1 << 16 else 4  # bytes of a size in the index
    index = sizes.astype(f"<u{width}").tobytes() + np.array(crcs, "<u4").tobytes()
    head = HEADER.pack(MAGIC, VERSION, len(sizes), first, len(records), width, 0)[:-4]
    write(path, head + struct.pack("<I", crc32c(head)) + records + index + struct.pack("<I", crc32c(index)))


class Shard:
    """An open shard, memory-mapped; sizes are checked against the file before anything is allocated."""

    def __init__(self, path: Path, first: int, records: int) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise DamageError(f"shard {path.name} cannot be opened", f"restore it ({error})") from error
        self.data = np.frombuffer(self._map, np.uint8)
        size, width = self._check_header(first, records)
        index = bytes(self._map[HEADER.size + size : -4])
        if struct.unpack("<I", self._map[-4:])[0] != crc32c(index):
            raise DamageError(f"the index of shard {path.name} is damaged", "restore the shard")
        self.sizes = np.frombuffer(index, f"<u{width}", records).astype(np.int64)
        self.crcs = np.frombuffer(index, "<u4", records, offset=width * records)
        if self.sizes.sum() != size:
            raise DamageError(f"the index of shard {path.name} does not add up", "restore the shard")
        self.starts = HEADER.size + np.cumsum(self.sizes) - self.sizes

    def _check_header(self, first: int, records: int) -> tuple[int, int]:
        """Bytes of all records, and of each size in the index."""
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
        if (start, count) != (first, records) or count > LARGEST_RECORDS or size > LARGEST_BYTES:
            raise DamageError(f"shard {name} is not the one the manifest names", "restore it")
        if width not in (2, 4) or len(self._map) != HEADER.size + size + (width + 4) * records + 4:
            raise DamageError(f"shard {name} has {len(self._map)} bytes, not what its header says", "restore it")
        return int(size), int(width)

    def check(self, local: np.ndarray) -> None:
        """Compare the CRC of records with the index. local: (B,) places in this shard."""
        for i in local.tolist():
            start = int(self.starts[i])
            if crc32c(self._map[start : start + int(self.sizes[i])]) != self.crcs[i]:
                raise DamageError(f"record {i} of shard {self.path.name} is damaged", "restore the shard")
