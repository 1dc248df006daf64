"""Shard files: golden bytes, and a refusal for each part that is wrong."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tilework.core.errors import DamageError, TileworkError
from tilework.store import StoreWriter
from tilework.store.shard import Shard, Shards, write_shard, write_shards

# Two records of four 3-bit codes, (5 1 7 2) and (0 0 0 7), of which the first is image 3:
GOLDEN = (
    "54494c4553485244"  # "TILESHRD"
    "02000000"  # version 2
    "02000000"  # 2 records
    "0300000000000000"  # first image 3
    "0400000000000000"  # 4 bytes of records
    "02000000"  # the smallest has 2
    "00000000"  # all of one size: the index holds none
    "10000000"  # 16 records share a checksum
    "275c932b"  # CRC32C of the 44 bytes above
    "cd05"  # record 0
    "000e"  # record 1
    "f1aca576"  # CRC32C of both
    "2c97d010"  # CRC32C of the 4 bytes of CRC32Cs
)
VERSION_1 = (
    "54494c4553485244010000000200000003000000000000000400000000000000"
    "00000000"  # all of one size: the index holds none
    "fc09556c"  # CRC32C of the 36 bytes above
    "cd05000e"  # records 0 and 1
    "20657800f5c8195d"  # their CRC32Cs
    "be82906a"  # CRC32C of the 8 bytes of CRC32Cs
)
VERSION_1_WITH_SIZES = (
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


def build_1(
    magic: bytes = b"TILESHRD",
    version: int = 1,
    records: tuple[bytes, ...] = (b"\xcd\x05", b"\x00\x0e"),
    first: int = 3,
    sizes: tuple[int, ...] = (2, 2),
    count: int = 2,
    data_bytes: int = 4,
    width: int = 2,
) -> bytes:
    """A shard of version 1 by hand, as docs/format.md tells; any part can be wrong with right checksums."""
    head = magic + struct.pack("<IIQQI", version, count, first, data_bytes, width)
    letter = {2: "H", 4: "I"}.get(width, "H")
    index = struct.pack(f"<{len(sizes)}{letter}", *sizes) + b"".join(struct.pack("<I", slow_crc32c(r)) for r in records)
    return together(head, b"".join(records), index)


def build(
    magic: bytes = b"TILESHRD",
    version: int = 2,
    records: tuple[bytes, ...] = (b"\xcd\x05", b"\x00\x0e"),
    first: int = 3,
    beyond: tuple[int, ...] = (0, 0),
    count: int = 2,
    data_bytes: int = 4,
    smallest: int = 2,
    group: int = 1,
    sizes: bytes | None = None,
) -> bytes:
    """The same of version 2. beyond: of sizes, the smallest; sizes: as they stand in the index."""
    planes = bytes(size >> 8 * place & 255 for place in range(4) for size in beyond)
    packed = zlib.compress(planes, 9) if sizes is None else sizes
    head = magic + struct.pack("<IIQQIII", version, count, first, data_bytes, smallest, len(packed), group)
    groups = [b"".join(records[at : at + group]) for at in range(0, len(records), group)]
    index = packed + b"".join(struct.pack("<I", slow_crc32c(part)) for part in groups)
    return together(head, b"".join(records), index)


def together(head: bytes, records: bytes, index: bytes) -> bytes:
    parts = [head, struct.pack("<I", slow_crc32c(head)), records, index, struct.pack("<I", slow_crc32c(index))]
    return b"".join(parts)


def opened(path: Path, data: bytes, first: int = FIRST, records: int = 2) -> Shard:
    path.write_bytes(data)
    return Shard(path, first, records)


def test_golden_bytes(tmp_path: Path) -> None:
    write_shard(tmp_path / "shard", RECORDS, SIZES, FIRST)
    written = (tmp_path / "shard").read_bytes()
    assert written.hex() == GOLDEN
    assert written == build(sizes=b"", group=16)
    assert build_1(sizes=(), width=0).hex() == VERSION_1
    assert build_1().hex() == VERSION_1_WITH_SIZES


def test_sizes_that_differ_are_written_as_the_format_tells(tmp_path: Path) -> None:
    records = (b"x" * 300, b"", b"y" * 70_000)
    write_shard(tmp_path / "shard", b"".join(records), np.array([300, 0, 70_000]), 3)
    beyond = (300, 0, 70_000)
    expected = build(records=records, beyond=beyond, count=3, data_bytes=70_300, smallest=0)
    assert (tmp_path / "shard").read_bytes() == expected


@pytest.mark.parametrize(("size", "group"), [(0, 16), (128, 16), (129, 8), (300, 4), (1000, 2), (1025, 1), (5000, 1)])
def test_large_records_share_a_checksum_with_few(tmp_path: Path, size: int, group: int) -> None:
    write_shard(tmp_path / "shard", bytes(size * 37), np.full(37, size), 0)
    shard = Shard(tmp_path / "shard", 0, 37)
    assert (shard.group, len(shard.crcs)) == (group, -(-37 // group))
    assert len(shard.records(np.arange(37))) == 37


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


@pytest.mark.parametrize("form", [GOLDEN, build().hex(), VERSION_1, VERSION_1_WITH_SIZES])
def test_shard_reads_back(tmp_path: Path, form: str) -> None:
    shard = opened(tmp_path / "shard", bytes.fromhex(form))
    assert shard.sizes(np.arange(2)).tolist() == [2, 2]
    assert [shard.data[a : a + 2].tobytes().hex() for a in shard.starts(np.arange(2)).tolist()] == ["cd05", "000e"]
    shard.records(np.array([1, 0, 1]))


def test_records_of_many_sizes_read_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    records = [rng.bytes(size) for size in (0, 1, 7, 0, 300, 2)]
    write_shard(tmp_path / "shard", b"".join(records), np.array([len(record) for record in records]), 2**40)
    shard = Shard(tmp_path / "shard", 2**40, 6)
    shard.records(np.arange(6))
    every = np.arange(len(shard))
    places = zip(shard.starts(every).tolist(), shard.sizes(every).tolist(), strict=True)
    assert [shard.data[start : start + size].tobytes() for start, size in places] == records


LENGTH = len(build())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "shard name.tiles cannot be opened"),
        (b"TILESHRD", r"shard name.tiles is cut short \(8 bytes\)"),
        (build()[:44], "the header of shard name.tiles is damaged"),
        (build(magic=b"TILESHRT"), "name.tiles is not a shard"),
        (build(version=3), "shard name.tiles has version 3, this software reads 1 and 2"),
        (build(version=0), "shard name.tiles has version 0, this software reads 1 and 2"),
        (build_1(version=2), "the header of shard name.tiles is damaged"),
        (build(version=1), "the header of shard name.tiles is damaged"),
        (build(data_bytes=5), f"shard name.tiles has {LENGTH} bytes, not what its header says"),
        (build(group=3), f"shard name.tiles has {LENGTH - 4} bytes, not what its header says"),
        (build(group=32), f"shard name.tiles has {LENGTH - 4} bytes, not what its header says"),
        (build(smallest=1), "the index of shard name.tiles does not add up"),
        (build(smallest=2**32 - 1), "the index of shard name.tiles does not add up"),
        (build(beyond=(0, 1)), "the index of shard name.tiles does not add up"),
        (build(beyond=(0, 0, 0)), "the index of shard name.tiles does not add up"),
        (build(beyond=(0,)), "the index of shard name.tiles does not add up"),
        (build(beyond=(0,) * 10**6), "the index of shard name.tiles does not add up"),
        (build(beyond=(2**32 - 1, 5), smallest=0), "the index of shard name.tiles does not add up"),
        (build(sizes=b"nonsense"), "the index of shard name.tiles does not add up"),
        (build(sizes=zlib.compress(bytes(8)) + b"x"), "the index of shard name.tiles does not add up"),
        (build(sizes=zlib.compress(bytes(8))[:-1]), "the index of shard name.tiles does not add up"),
        (build() + b"\0", f"shard name.tiles has {LENGTH + 1} bytes, not what its header says"),
        (build_1(data_bytes=5), "shard name.tiles has 60 bytes, not what its header says"),
        (build_1(sizes=(2, 3)), "the index of shard name.tiles does not add up"),
        (build_1(width=3), "shard name.tiles has 60 bytes, not what its header says"),
        (build_1(sizes=(2**32 - 1, 5), width=4), "the index of shard name.tiles does not add up"),
        (build_1() + b"\0", "shard name.tiles has 61 bytes, not what its header says"),
        *(
            (make(**wrong), "shard name.tiles is not the one the manifest names")
            for make in (build, build_1)
            for wrong in ({"first": 4}, {"count": 3}, {"data_bytes": 2**31 + 1}, {"data_bytes": 2**64 - 1})
        ),
    ],
    ids=range(35),
)
def test_wrong_shard_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(DamageError, match=message):
        opened(tmp_path / "name.tiles", data)


@pytest.mark.parametrize(
    ("made", "place"), [*((build, n) for n in (12, 20, 32, 36, 40, 44, 47)), *((build_1, n) for n in (12, 32, 36, 39))]
)
def test_damaged_header_is_refused(tmp_path: Path, made: Callable[[], bytes], place: int) -> None:
    data = bytearray(made())
    data[place] ^= 1
    with pytest.raises(DamageError, match=r"the header of shard name\.tiles is damaged"):
        opened(tmp_path / "name.tiles", bytes(data))


@pytest.mark.parametrize("made", [build, build_1])
@pytest.mark.parametrize("place", [-1, -4, -5, -8, -12, -14])
def test_damaged_index_is_refused(tmp_path: Path, made: Callable[[], bytes], place: int) -> None:
    data = bytearray(made())
    data[place] ^= 1
    with pytest.raises(DamageError, match=r"the index of shard name\.tiles is damaged"):
        opened(tmp_path / "name.tiles", bytes(data))


@pytest.mark.parametrize("kernels", ["0", "1"])
@pytest.mark.parametrize(("made", "header"), [(build, 48), (build_1, 40)])
def test_damaged_record_is_refused_and_the_other_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: str, made: Callable[[], bytes], header: int
) -> None:
    monkeypatch.setenv("TILEWORK_KERNELS", kernels)
    data = bytearray(made())
    data[header + 2] ^= 128  # in record 1
    shard = opened(tmp_path / "name.tiles", bytes(data))
    shard.records(np.array([0]))
    with pytest.raises(DamageError, match=r"record 1 of shard name\.tiles is damaged"):
        shard.records(np.array([0, 1]))
    assert shard.damaged() == ["record 1"]


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("kernels", ["0", "1"])
@pytest.mark.parametrize("longest", [40, 100_000])  # of sizes alike, and of one that is much longer
def test_records_of_several_shards_come_in_the_order_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: str, threads: str, longest: int
) -> None:
    monkeypatch.setenv("TILEWORK_KERNELS", kernels)
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    monkeypatch.setattr("tilework.store.shard.WORTH_A_THREAD", 1)
    rng = np.random.default_rng(0)
    sizes = rng.integers(20, 40, 100)
    sizes[37] = longest
    records = [rng.integers(0, 256, size, dtype=np.uint8).tobytes() for size in sizes]
    shards = Shards(tmp_path, write_shards(tmp_path, "shards", [(b"".join(records), sizes)], most=30))
    for index in (rng.integers(0, 100, 256), rng.integers(40, 50, 20)):  # of all shards, and of one of them
        data, starts, found = shards.gather(index)
        assert [data[start : start + size].tobytes() for start, size in zip(starts, found, strict=True)] == [
            records[i] for i in index
        ]


@pytest.mark.parametrize("kernels", ["0", "1"])
def test_damage_is_seen_by_whoever_reads_a_record_of_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: str
) -> None:
    monkeypatch.setenv("TILEWORK_KERNELS", kernels)
    write_shard(tmp_path / "name.tiles", bytes(range(250)) * 40, np.full(50, 200), 0)  # groups of 8, the last of 2
    data = bytearray((tmp_path / "name.tiles").read_bytes())
    data[48 + 200 * 10 + 7] ^= 1  # in record 10
    data[48 + 200 * 49] ^= 1
    (tmp_path / "name.tiles").write_bytes(data)
    shard = Shard(tmp_path / "name.tiles", 0, 50)
    shard.records(np.array([7, 16, 0, 47]))
    for local in (8, 10, 15):
        with pytest.raises(DamageError, match=r"one of records 8 to 15 of shard name\.tiles is damaged"):
            shard.records(np.array([0, local]))
    with pytest.raises(DamageError, match="one of records 48 to 49"):
        shard.copy(np.array([48]), np.zeros(500, np.uint8), 0)
    assert shard.damaged() == ["one of records 8 to 15", "one of records 48 to 49"]


def test_sizes_that_move_a_border_are_seen(tmp_path: Path) -> None:
    for data in (build_1(sizes=(1, 3)), build(beyond=(0, 2), smallest=1)):  # add up, checksum of the index right
        shard = opened(tmp_path / "name.tiles", data)
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
    assert len(Shard(tmp_path / "shard", 0, count)) == count


@pytest.mark.parametrize("largest", [30, 300, 3000])  # groups of 16, of a few, and of one record
def test_an_open_shard_holds_eight_bytes_for_each_record(largest: int, tmp_path: Path) -> None:
    sizes = np.random.default_rng(0).integers(largest // 2, largest, 2000)
    write_shard(tmp_path / "shard", bytes(int(sizes.sum())), sizes, 0)
    shard, every = Shard(tmp_path / "shard", 0, 2000), np.arange(2000)
    assert shard.sizes(every).tolist() == sizes.tolist()
    held = {id(x): x for x in vars(shard).values() if isinstance(x, np.ndarray) and x is not shard.data}
    assert shard.index_bytes == sum(x.nbytes for x in held.values()) <= 8 * 2000 + 8
    assert all(x.base is None for x in held.values())  # nor do they keep something larger alive
    assert shard.find(every)[1].tolist() == sizes.tolist()
    assert shard.damaged() == []
