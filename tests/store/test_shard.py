"""Shard files: golden bytes, and a refusal for each part that is wrong."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from tilework.core.errors import DamageError, TileworkError
from tilework.store import StoreWriter
from tilework.store.shard import Shard, write_shard

# Two records of four 3-bit codes, (5 1 7 2) and (0 0 0 7), of which the first is image 3:
GOLDEN = (
    "54494c4553485244"  # "TILESHRD"
    "01000000"  # version 1
    "02000000"  # 2 records
    "0300000000000000"  # first image 3
    "0400000000000000"  # 4 bytes of records
    "00000000"  # all of one size: the index holds none
    "fc09556c"  # CRC32C of the 36 bytes above
    "cd05"  # record 0
    "000e"  # record 1
    "20657800f5c8195d"  # their CRC32Cs
    "be82906a"  # CRC32C of the 8 bytes of CRC32Cs
)
WITH_SIZES = (
    "54494c4553485244010000000200000003000000000000000400000000000000"
    "02000000"  # sizes take 2 bytes
    "7d2a32d3"  # CRC32C of the 36 bytes above
    "cd05000e"  # records 0 and 1
    "02000200"  # their sizes
    "20657800f5c8195d"  # their CRC32Cs
    "b2ac7b3c"  # CRC32C of the 12 bytes of sizes and CRC32Cs
)
RECORDS, SIZES, FIRST = bytes.fromhex("cd05000e"), np.array([2, 2]), 3


def slow_crc32c(data: bytes) -> int:
    """Bit by bit, reflected polynomial 0x82F63B78."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def build(
    magic: bytes = b"TILESHRD",
    version: int = 1,
    records: tuple[bytes, ...] = (b"\xcd\x05", b"\x00\x0e"),
    first: int = 3,
    sizes: tuple[int, ...] = (2, 2),
    count: int = 2,
    data_bytes: int = 4,
    width: int = 2,
) -> bytes:
    """A shard put together by hand, as docs/format.md tells; any part can be wrong with right checksums."""
    head = magic + struct.pack("<IIQQI", version, count, first, data_bytes, width)
    letter = {2: "H", 4: "I"}.get(width, "H")
    index = struct.pack(f"<{len(sizes)}{letter}", *sizes) + b"".join(struct.pack("<I", slow_crc32c(r)) for r in records)
    parts = [head, struct.pack("<I", slow_crc32c(head)), *records, index, struct.pack("<I", slow_crc32c(index))]
    return b"".join(parts)


def opened(path: Path, data: bytes, first: int = FIRST, records: int = 2) -> Shard:
    path.write_bytes(data)
    return Shard(path, first, records)


def test_golden_bytes(tmp_path: Path) -> None:
    write_shard(tmp_path / "shard", RECORDS, SIZES, FIRST)
    written = (tmp_path / "shard").read_bytes()
    assert written.hex() == GOLDEN
    assert written == build(sizes=(), width=0)
    assert build().hex() == WITH_SIZES


def test_golden_bytes_of_the_writer(tmp_path: Path) -> None:
    ids = np.array([[[1, 1], [1, 1]]] * 3 + [[[5, 1], [7, 2]], [[0, 0], [0, 7]]])
    with StoreWriter(tmp_path / "out.tok", np.zeros((8, 1)), ["a"], codec="packed", shard_images=3) as writer:
        writer.add(ids, [0] * 5, list("abcde"))
    assert (tmp_path / "out.tok/shards/00001.tiles").read_bytes().hex() == GOLDEN


def test_the_worked_example_of_the_format() -> None:
    text = (Path(__file__).parents[2] / "docs/format.md").read_text()
    block = text.split("54 49 4c 45", 1)[1].split("```", 1)[0]
    lines = ["54 49 4c 45" + block.splitlines()[0], *block.splitlines()[1:]]
    assert "".join(line.split("    ")[0].replace(" ", "") for line in lines) == GOLDEN


@pytest.mark.parametrize("form", [GOLDEN, WITH_SIZES])
def test_shard_reads_back(tmp_path: Path, form: str) -> None:
    shard = opened(tmp_path / "shard", bytes.fromhex(form))
    assert shard.sizes.tolist() == [2, 2]
    assert [shard.data[a : a + 2].tobytes().hex() for a in shard.starts.tolist()] == ["cd05", "000e"]
    shard.records(np.array([1, 0, 1]))


def test_records_of_many_sizes_read_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    records = [rng.bytes(size) for size in (0, 1, 7, 0, 300, 2)]
    write_shard(tmp_path / "shard", b"".join(records), np.array([len(record) for record in records]), 2**40)
    shard = Shard(tmp_path / "shard", 2**40, 6)
    shard.records(np.arange(6))
    places = zip(shard.starts.tolist(), shard.sizes.tolist(), strict=True)
    assert [shard.data[start : start + size].tobytes() for start, size in places] == records


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "shard name.tiles cannot be opened"),
        (b"TILESHRD", r"shard name.tiles is cut short \(8 bytes\)"),
        (build(magic=b"TILESHRT"), "name.tiles is not a shard"),
        (build(version=2), "shard name.tiles has version 2, this software reads 1"),
        (build(first=4), "shard name.tiles is not the one the manifest names"),
        (build(count=3), "shard name.tiles is not the one the manifest names"),
        (build(data_bytes=5), "shard name.tiles has 60 bytes, not what its header says"),
        (build(data_bytes=2**31 + 1), "shard name.tiles is not the one the manifest names"),
        (build(data_bytes=2**64 - 1), "shard name.tiles is not the one the manifest names"),
        (build(sizes=(2, 3)), "the index of shard name.tiles does not add up"),
        (build(width=3), "shard name.tiles has 60 bytes, not what its header says"),
        (build(sizes=(2**32 - 1, 5), width=4), "the index of shard name.tiles does not add up"),
        (build() + b"\0", "shard name.tiles has 61 bytes, not what its header says"),
    ],
    ids=range(13),
)
def test_wrong_shard_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(DamageError, match=message):
        opened(tmp_path / "name.tiles", data)


@pytest.mark.parametrize("place", [12, 20, 32, 36, 39])
def test_damaged_header_is_refused(tmp_path: Path, place: int) -> None:
    data = bytearray(build())
    data[place] ^= 1
    with pytest.raises(DamageError, match=r"the header of shard name\.tiles is damaged"):
        opened(tmp_path / "name.tiles", bytes(data))


@pytest.mark.parametrize("place", [44, 48, 56, 59])
def test_damaged_index_is_refused(tmp_path: Path, place: int) -> None:
    data = bytearray(build())
    data[place] ^= 1
    with pytest.raises(DamageError, match=r"the index of shard name\.tiles is damaged"):
        opened(tmp_path / "name.tiles", bytes(data))


def test_damaged_record_is_refused_and_the_other_one_is_not(tmp_path: Path) -> None:
    data = bytearray(build())
    data[42] ^= 128  # in record 1
    shard = opened(tmp_path / "name.tiles", bytes(data))
    shard.records(np.array([0]))
    with pytest.raises(DamageError, match=r"record 1 of shard name\.tiles is damaged"):
        shard.records(np.array([0, 1]))


def test_sizes_that_move_a_border_are_seen(tmp_path: Path) -> None:
    shard = opened(tmp_path / "name.tiles", build(sizes=(1, 3)))  # adds up, checksum of the index right
    with pytest.raises(DamageError, match=r"record 0 of shard name\.tiles is damaged"):
        shard.records(np.array([0]))


@pytest.mark.parametrize("kind", ["absent", "folder"])
def test_shard_that_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    if kind == "folder":
        (tmp_path / "name.tiles").mkdir()
    with pytest.raises(DamageError, match=r"shard name\.tiles cannot be opened"):
        Shard(tmp_path / "name.tiles", 0, 1)


def test_what_can_be_written_can_be_read(tmp_path: Path) -> None:
    count = 2**20 + 1  # one more record than a reader takes
    try:
        write_shard(tmp_path / "shard", bytes(count), np.ones(count, np.int64), 0)
    except TileworkError:
        return
    assert len(Shard(tmp_path / "shard", 0, count).sizes) == count
