"""Sealing: which codes are kept, how records are cut into shards, crashes and locks; and columns added to a store."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load

from tilework.core.errors import ConfigError, InputError, OutputError, TileworkError
from tilework.core.files import locked
from tilework.store import Plan, Spool, Store, StoreWriter, seal, spool_of
from tilework.store.code_map import CodeMap
from tilework.store.columns import ColumnEntry, RecordColumn
from tilework.store.seal import SealOptions, seal_share
from tilework.store.shard import write_shards

PLAN = Plan(vocabulary=50, grid=(3, 4), classes=("ant", "bee"), parts=2)
CODEBOOK = np.random.default_rng(1).normal(size=(50, 3)).astype(np.float32)
COLUMNS: dict[str, Any] = {
    "array": np.arange(14.0).reshape(7, 2),
    "text": ["", "a", "ü", "図", "b\0", "\n", "c"],
    "bytes": [b"", b"a", b"\0\xff", b"", b"bcd", b"e", b"f" * 70_000],
    "ragged": [np.arange(2 * n, dtype=np.int16).reshape(n, 2) for n in (0, 3, 1, 0, 2, 1, 4)],
}
KINDS = tuple(COLUMNS)

linux = pytest.mark.skipif(os.name != "posix", reason="needs fork and locks")


def some(codes: Any, count: int = 10, seed: int = 0) -> np.ndarray:
    """Images of these codes, each of which occurs. Returns (B, 3, 4)."""
    ids = np.random.default_rng(seed).choice(codes, (count, 3, 4))
    ids.ravel()[: len(codes)] = codes
    return ids


def spooled(store: Path, ids: np.ndarray, plan: Plan = PLAN, codebook: np.ndarray = CODEBOOK) -> Spool:
    spool = Spool.create(spool_of(store), plan, codebook)
    half = len(ids) // 2
    spool.put(0, ids[:half], {"label": np.arange(half) % 2})
    spool.put(1, ids[half:], {"label": np.arange(len(ids) - half) % 2})
    return spool


def sealed(store: Path, ids: np.ndarray, **options: Any) -> Store:
    seal(spooled(store, ids), store, **options)
    return Store(store)


def files(path: Path) -> dict[str, bytes]:
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def names(path: Path) -> list[str]:
    return sorted(child.name for child in path.iterdir())


def assert_same(found: Any, values: Any) -> None:
    assert len(found) == len(values)
    for one, other in zip(found, values, strict=True):
        assert type(one) is type(other)
        np.testing.assert_array_equal(one, other)


# codes in use


def test_only_codes_in_use_are_kept(tmp_path: Path) -> None:
    codes = np.array([0, 3, 4, 17, 40, 49])
    ids = some(codes)
    store = sealed(tmp_path / "out.tok", ids)
    assert store.used.tolist() == codes.tolist()
    np.testing.assert_array_equal(store.codebook.vectors, CODEBOOK[codes])
    np.testing.assert_array_equal(store.used[store.batch(np.arange(10))], ids)
    assert (store.vocabulary, store.manifest.tokenizer_codes, store.manifest.substituted) == (6, 50, 0)
    assert store.histogram().tolist() == np.bincount(ids.ravel(), minlength=50)[codes].tolist()
    assert store.verify(deep=True) == []


@pytest.mark.parametrize(("codes", "cut"), [(np.arange(50), True), (np.array([3, 4]), False)])
def test_no_map_where_all_codes_are_kept(tmp_path: Path, codes: np.ndarray, cut: bool) -> None:
    store = sealed(tmp_path / "out.tok", some(codes), cut=cut)
    assert list(load((store.path / "codebook.safetensors").read_bytes())) == ["codebook"]
    assert store.used.tolist() == list(range(50))
    np.testing.assert_array_equal(store.codebook.vectors, CODEBOOK)
    np.testing.assert_array_equal(store.batch(np.arange(10)), some(codes))


def test_writer_cuts_alike(tmp_path: Path) -> None:
    ids = some([1, 2, 30])
    with StoreWriter(tmp_path / "writer.tok", CODEBOOK, PLAN.classes, cut=True) as writer:
        writer.add(ids, np.tile(np.arange(5) % 2, 2), [""] * 10)
    one, other = Store(tmp_path / "writer.tok"), sealed(tmp_path / "out.tok", ids)
    np.testing.assert_array_equal(one.batch(np.arange(10)), other.batch(np.arange(10)))
    assert one.used.tolist() == other.used.tolist() == [1, 2, 30]


def nearest(code: int, used: list[int], codebook: np.ndarray) -> int:
    """The first of the kept codes that is nearest by Euclidean distance."""
    best, least = -1, np.inf
    for kept in used:
        distance = sum((float(a) - float(b)) ** 2 for a, b in zip(codebook[code], codebook[kept], strict=True))
        if distance < least:
            best, least = kept, distance
    return best


@pytest.mark.parametrize("used", [[0], [5, 6, 7], [2, 11, 30, 40], list(range(0, 50, 2)), list(range(50))], ids=len)
@pytest.mark.parametrize("kind", ["real", "whole"])
def test_codes_another_store_lacks_become_the_nearest(tmp_path: Path, used: list[int], kind: str) -> None:
    rng = np.random.default_rng(3)  # whole numbers have many equal distances
    codebook = CODEBOOK if kind == "real" else rng.integers(0, 4, (50, 3)).astype(np.float32)
    ids = some(np.arange(50), 20)
    path = tmp_path / "out.tok"
    seal(spooled(path, ids, codebook=codebook), path, used=np.array(used))
    store = Store(path)
    table = np.array([code if code in used else nearest(code, used, codebook) for code in range(50)])
    np.testing.assert_array_equal(store.used[store.batch(np.arange(20))], table[ids])
    np.testing.assert_array_equal(store.codebook.vectors, codebook[used])
    assert store.used.tolist() == used
    assert store.manifest.substituted == int((~np.isin(ids, used)).sum())
    assert store.verify(deep=True) == []


def test_store_takes_over_the_codes_of_another(tmp_path: Path) -> None:
    train = sealed(tmp_path / "train.tok", some(np.arange(0, 50, 3)))
    val = sealed(tmp_path / "val.tok", some(np.arange(0, 20), seed=1), used=train.used)
    assert val.used.tolist() == train.used.tolist()
    np.testing.assert_array_equal(val.codebook.vectors, train.codebook.vectors)
    assert val.manifest.substituted > 0


@pytest.mark.parametrize("used", [[], [50], [-1], [[0, 1]], [0.5]], ids=str)
def test_codes_that_cannot_be_kept_are_refused(tmp_path: Path, used: list[Any]) -> None:
    spool = spooled(tmp_path / "out.tok", some([1]))
    with pytest.raises(TileworkError):
        seal(spool, tmp_path / "out.tok", used=np.array(used))
    assert names(tmp_path) == ["out.tok.spool"]


def test_nothing_is_nearest_without_code_vectors(tmp_path: Path) -> None:
    spool = spooled(tmp_path / "out.tok", some([1, 2, 3]), codebook=np.zeros((50, 0), np.float32))
    with pytest.raises(InputError):
        seal(spool, tmp_path / "out.tok", used=np.array([2, 3]))


def test_store_without_code_vectors(tmp_path: Path) -> None:
    ids = some([1, 2, 30])
    seal(spooled(tmp_path / "out.tok", ids, codebook=np.zeros((50, 0), np.float32)), tmp_path / "out.tok")
    store = Store(tmp_path / "out.tok")
    np.testing.assert_array_equal(store.used[store.batch(np.arange(10))], ids)
    assert (store.codebook.vectors.shape, store.verify(deep=True)) == ((3, 0), [])


def test_code_map_by_hand() -> None:
    found = CodeMap.of(np.array([4, 1]), np.array([[0.0], [1.0], [2.4], [2.6], [4.0]], np.float32))
    assert found.used.tolist() == [4, 1]
    assert found.number.tolist() == [1, 1, 1, 0, 0]
    assert found.kept.tolist() == [False, True, False, False, True]


# crashes and locks


def test_seal_ends_what_a_crash_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = some([1, 2, 30])
    expected = files(sealed(tmp_path / "whole/out.tok", ids).path)
    out = tmp_path / "crashed/out.tok"
    remove = Spool.remove

    def crash(spool: Spool) -> None:
        monkeypatch.setattr(Spool, "remove", remove)
        raise RuntimeError("killed")

    monkeypatch.setattr(Spool, "remove", crash)
    with pytest.raises(RuntimeError, match="killed"):
        seal(spooled(out, ids), out)
    assert names(out.parent) == ["out.tok", "out.tok.spool"]
    assert files(out) == expected
    seal(spooled(out, ids), out)
    assert names(out.parent) == ["out.tok"]
    assert files(out) == expected


def test_seal_after_a_crash_keeps_the_store_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.tok"
    spool = spooled(out, some([1, 2, 30]))
    with monkeypatch.context() as patch:
        patch.setattr(Spool, "remove", lambda spool: None)
        seal(spool, out)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    seal(Spool.open(spool.path), out)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    assert names(tmp_path) == ["out.tok"]


def test_remains_of_an_earlier_attempt_do_not_get_into_the_store(tmp_path: Path) -> None:
    ids = some([1, 2, 30])
    expected = files(sealed(tmp_path / "whole.tok", ids).path)
    spool = spooled(tmp_path / "out.tok", ids)
    for name in (
        "shards/00007.tiles",
        "shards/.00000.tiles.0123abcd.tmp",
        "columns/label.safetensors",
        "manifest.json",
    ):
        (spool.path / "sealed" / name).parent.mkdir(parents=True, exist_ok=True)
        (spool.path / "sealed" / name).write_bytes(b"half")
    (spool.path / "done").write_bytes(b"0123")
    (spool.path / ".done.0123abcd.tmp").write_bytes(b"half")
    seal(spool, tmp_path / "out.tok")
    assert files(tmp_path / "out.tok") == expected
    assert names(tmp_path) == ["out.tok", "whole.tok"]


@pytest.mark.parametrize("kind", ["store", "empty folder", "folder", "file"])
def test_output_that_exists_is_refused(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out.tok"
    if kind == "store":
        sealed(out, some([7]))
    elif kind == "file":
        out.write_bytes(b"mine")
    else:
        out.mkdir()
        (out / "file").write_bytes(b"mine") if kind == "folder" else None
    before = files(tmp_path)
    spool = spooled(out, some([1, 2]))
    parts = files(spool.path)
    with pytest.raises(OutputError, match=r"out\.tok exists"):
        seal(spool, out)
    assert files(spool.path) == parts
    assert {name: data for name, data in files(tmp_path).items() if ".spool/" not in name} == before


@pytest.mark.parametrize(("classes", "codec", "error"), [(1, "auto", InputError), (2, "paked", ConfigError)])
def test_refusal_leaves_the_spool(tmp_path: Path, classes: int, codec: str, error: type[TileworkError]) -> None:
    spool = spooled(tmp_path / "out.tok", some([1, 2]), replace(PLAN, classes=PLAN.classes[:classes]))
    with pytest.raises(error):
        seal(spool, tmp_path / "out.tok", codec)
    assert (names(tmp_path), spool.done()) == (["out.tok.spool"], [0, 1])


def test_progress_ends_at_the_number_of_records(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    sealed(tmp_path / "out.tok", some([1, 2]), shard_images=5, progress=lambda *both: seen.append(both))
    assert seen == [(5, 10), (10, 10)]


@linux
def test_second_process_cannot_seal_meanwhile(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    inside, go_on = context.Event(), context.Event()
    out = tmp_path / "out.tok"
    spool = spooled(out, some([1, 2]))

    def wait(done: int, total: int) -> None:
        inside.set()
        go_on.wait(30)

    first = context.Process(target=seal, args=(spool, out), kwargs={"progress": wait})
    first.start()
    try:
        assert inside.wait(30)
        with pytest.raises(OutputError, match=r"out\.tok\.spool is in use by another process"):
            seal(spool, out)
        with pytest.raises(OutputError, match=r"out\.tok\.spool is in use by another process"):
            StoreWriter(out, CODEBOOK, ["a"]).__enter__()
    finally:
        go_on.set()
        first.join(30)
    assert first.exitcode == 0
    assert names(tmp_path) == ["out.tok"]
    assert Store(out).verify() == []


def test_spool_that_another_process_has_sealed_is_refused_as_ours(tmp_path: Path) -> None:
    spool = spooled(tmp_path / "out.tok", some([1, 2]))
    seal(Spool.open(spool.path), tmp_path / "out.tok")
    with pytest.raises(TileworkError, match=r"out\.tok"):
        seal(spool, tmp_path / "out.tok")
    assert names(tmp_path) == ["out.tok"]


@linux
def test_writer_holds_its_spool_until_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, asking = os.close, [False]

    def close(handle: int) -> None:
        real(handle)
        if asking[0]:  # this is the other writer's own handle
            return
        asking[0] = True
        with pytest.raises(OutputError):  # it would remove the parts that are about to be sealed
            StoreWriter(tmp_path / "out.tok", CODEBOOK, ["a"]).__enter__()
        asking[0] = False

    with monkeypatch.context() as patch, StoreWriter(tmp_path / "out.tok", CODEBOOK, ["a"]) as writer:
        writer.add(some([1, 2]), [0] * 10, [""] * 10)
        patch.setattr(os, "close", close)
    assert names(tmp_path) == ["out.tok"]
    assert Store(tmp_path / "out.tok").verify() == []


# shards


def cut_slowly(sizes: list[int], most: int, most_bytes: int) -> list[int]:
    """Records of each shard, one record after another."""
    shards: list[list[int]] = []
    for size in sizes:
        if not shards or len(shards[-1]) == most or sum(shards[-1]) + size > most_bytes:
            shards.append([])
        shards[-1].append(size)
    return [len(shard) for shard in shards]


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 12), max_size=14),
    cuts=st.lists(st.integers(0, 14), max_size=5),
    most=st.integers(1, 6),
    most_bytes=st.integers(1, 30),
)
def test_shards_depend_on_the_records_alone(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], cuts: list[int], most: int, most_bytes: int
) -> None:
    root = tmp_path_factory.mktemp("shards")
    records = [bytes([i]) * size for i, size in enumerate(sizes)]
    places = sorted({0, len(sizes), *(min(cut, len(sizes)) for cut in cuts)})
    pairs = [(a, b) for a, b in zip(places, [*places[1:], len(sizes)], strict=True)]  # the last one is empty
    chunks = [(b"".join(records[a:b]), np.array(sizes[a:b], np.int64)) for a, b in pairs]
    entries = write_shards(root, "x", chunks, most, most_bytes)
    assert [entry.records for entry in entries] == cut_slowly(sizes, most, most_bytes)
    assert [entry.file for entry in entries] == [f"x/{i:05d}.tiles" for i in range(len(entries))]
    assert RecordColumn(root, ColumnEntry("x", "bytes", shards=entries))[:] == records


@pytest.mark.parametrize("most", [0, -1])
def test_shards_of_no_images_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    shards: list[Path] = []

    def write_shard(path: Path, records: bytes, sizes: np.ndarray, first: int) -> int:
        shards.append(path)
        assert len(shards) < 100, "shards without end"
        return 0

    monkeypatch.setattr("tilework.store.shard.write_shard", write_shard)
    spool = spooled(tmp_path / "out.tok", some([1, 2]))
    with pytest.raises(InputError):
        seal(spool, tmp_path / "out.tok", shard_images=most)


@pytest.mark.parametrize(("shard_images", "records"), [(1, [1] * 10), (3, [3, 3, 3, 1]), (5, [5, 5]), (99, [10])])
def test_shards_hold_a_number_of_images(tmp_path: Path, shard_images: int, records: list[int]) -> None:
    store = sealed(tmp_path / "out.tok", some([1, 2, 3]), shard_images=shard_images)
    assert [shard.records for shard in store.manifest.shards] == records
    np.testing.assert_array_equal(store.used[store.batch(np.arange(10))], some([1, 2, 3]))


def test_records_of_bytes_are_cut_into_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Path) -> None:
    monkeypatch.setattr("tilework.store.columns.RECORDS", 3)
    store = Store(tiny)
    store.add_column("raw", COLUMNS["bytes"])
    entry = next(entry for entry in store.manifest.columns if entry.name == "raw")
    assert [shard.records for shard in entry.shards] == [3, 3, 1]
    assert_same(store.column("raw"), COLUMNS["bytes"])
    assert store.column("raw")[1:6:2] == COLUMNS["bytes"][1:6:2]
    assert store.column("raw")[-1] == COLUMNS["bytes"][-1]


# columns added later


@pytest.mark.parametrize("kind", KINDS)
def test_added_column_reads_back(tiny: Path, contents: SimpleNamespace, kind: str) -> None:
    before = files(tiny)
    store = Store(tiny)
    store.add_column("x", COLUMNS[kind])
    after = files(tiny)
    new = {name for name in after if name not in before}
    assert new == {"columns/x.safetensors" if kind in ("array", "text") else "columns/x/00000.tiles"}
    assert {name for name in before if after[name] != before[name]} == {"manifest.json"}
    for found in (store, Store(tiny)):
        assert_same(found.column("x"), COLUMNS[kind])
        assert found.verify(deep=True) == []
        np.testing.assert_array_equal(found.batch(np.arange(7)), contents.ids)
        assert found.column("key") == contents.keys


def test_columns_of_every_kind_are_added(tiny: Path) -> None:
    for kind in KINDS:
        Store(tiny).add_column(kind, COLUMNS[kind])
    store = Store(tiny)
    assert [entry.name for entry in store.manifest.columns][2:] == list(KINDS)
    for kind in KINDS:
        assert_same(store.column(kind), COLUMNS[kind])
    assert store.verify(deep=True) == []


def test_column_added_later_is_the_same_as_one_spooled(tmp_path: Path) -> None:
    plan = replace(PLAN, parts=1)
    spool = Spool.create(spool_of(tmp_path / "one.tok"), plan, CODEBOOK)
    spool.put(0, some([1, 2], 7), COLUMNS)
    seal(spool, tmp_path / "one.tok")
    spool = Spool.create(spool_of(tmp_path / "other.tok"), plan, CODEBOOK)
    spool.put(0, some([1, 2], 7), {})
    seal(spool, tmp_path / "other.tok")
    for kind in sorted(KINDS):
        Store(tmp_path / "other.tok").add_column(kind, COLUMNS[kind])
    assert files(tmp_path / "other.tok") == files(tmp_path / "one.tok")


def test_stores_opened_before_add_columns_in_turn(tiny: Path) -> None:
    one, other = Store(tiny), Store(tiny)
    one.add_column("x", COLUMNS["text"])
    other.add_column("y", COLUMNS["array"])
    with pytest.raises(OutputError, match="has a column 'y'"):
        one.add_column("y", COLUMNS["bytes"])
    assert Store(tiny).verify() == []
    assert_same(Store(tiny).column("x"), COLUMNS["text"])
    assert_same(Store(tiny).column("y"), COLUMNS["array"])


@pytest.mark.parametrize("name", ["label", "key"])
@pytest.mark.parametrize("kind", KINDS)
def test_name_that_is_taken_is_refused(tiny: Path, name: str, kind: str) -> None:
    before = files(tiny)
    with pytest.raises(OutputError, match=f"has a column '{name}'"):
        Store(tiny).add_column(name, COLUMNS[kind])
    assert files(tiny) == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, 1, 6, 8])
def test_column_of_another_length_is_refused(tiny: Path, kind: str, count: int) -> None:
    before = files(tiny)
    values = np.zeros(count) if kind == "array" else [*COLUMNS[kind], COLUMNS[kind][0]][:count]
    with pytest.raises(InputError):
        Store(tiny).add_column("x", values)
    assert files(tiny) == before


@pytest.mark.parametrize("name", ["../x", "/x", "a/b", "", ".", "..", ".x", "a-b", "a b", "1x", "x\0", "x.y", "a\\b"])
def test_name_that_cannot_be_is_refused(tiny: Path, name: str) -> None:
    before = files(tiny.parent)
    for kind in KINDS:
        with pytest.raises(InputError):
            Store(tiny).add_column(name, COLUMNS[kind])
    assert files(tiny.parent) == before


@linux
def test_column_is_not_added_while_another_process_does(tiny: Path) -> None:
    before = files(tiny)
    with locked(tiny), pytest.raises(OutputError, match=r"tiny\.tok is in use by another process"):
        Store(tiny).add_column("x", COLUMNS["text"])
    assert files(tiny) == before


def add_and_die(path: Path, kind: str) -> None:
    """Add a column, but stop before the manifest is written."""

    def stop(*args: Any) -> None:
        raise RuntimeError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilework.store.reader.write_manifest", stop)
        with pytest.raises(RuntimeError, match="killed"):
            Store(path).add_column("x", COLUMNS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_column_killed_in_between_does_not_break_the_store(tiny: Path, contents: SimpleNamespace, kind: str) -> None:
    before = files(tiny)
    add_and_die(tiny, kind)
    (tiny / "columns/.x.safetensors.0123abcd.tmp").write_bytes(b"half")
    store = Store(tiny)
    np.testing.assert_array_equal(store.batch(np.arange(7)), contents.ids)
    assert [entry.name for entry in store.manifest.columns] == ["key", "label"]
    assert all("is not in the manifest" in line for line in store.verify())
    assert {name: data for name, data in files(tiny).items() if name in before} == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("again", KINDS)
def test_adding_again_cures_it(tmp_path: Path, tiny: Path, kind: str, again: str) -> None:
    shutil.copytree(tiny, tmp_path / "whole.tok")
    Store(tmp_path / "whole.tok").add_column("x", COLUMNS[again])
    add_and_die(tiny, kind)
    (tiny / "columns/.x.safetensors.0123abcd.tmp").write_bytes(b"half")
    Store(tiny).add_column("x", COLUMNS[again])
    assert_same(Store(tiny).column("x"), COLUMNS[again])
    assert Store(tiny).verify() == []
    assert files(tiny) == files(tmp_path / "whole.tok")


def test_adding_again_removes_half_a_manifest(tiny: Path) -> None:
    (tiny / ".manifest.json.0123abcd.tmp").write_bytes(b"half")  # by a process that was killed
    Store(tiny).add_column("x", COLUMNS["text"])
    assert Store(tiny).verify() == []


def test_adding_fewer_shards_again_cures_it(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("tilework.store.columns.RECORDS", 2)  # as if the values had been larger
        add_and_die(tiny, "bytes")
    Store(tiny).add_column("x", COLUMNS["bytes"])
    assert Store(tiny).verify() == []


# many processes, many images


def many(store: Path, parts: int = 7, views: int = 1) -> Spool:
    """A spool of parts of different sizes, one of them empty, with columns of every kind."""
    rng = np.random.default_rng(2)
    plan = replace(PLAN, parts=parts, views=views)
    spool = Spool.create(spool_of(store), plan, CODEBOOK)
    for number in range(parts):
        count = 0 if number == 3 else 5 + 7 * number
        columns = {
            "label": rng.integers(0, 2, count),
            "key": [f"{number}/{i}" for i in range(count)],
            "blob": [bytes([i]) * i for i in range(count)],
            "boxes": [np.full((i % 3, 4), i, np.int16) for i in range(count)],
        }
        shape = (count, views, 3, 4) if views > 1 else (count, 3, 4)
        spool.put(number, rng.integers(0, 50, shape), columns)
    return spool


@pytest.mark.parametrize("codec", ["packed", "rans", "rans-context", "pairwise"])
@pytest.mark.parametrize(("shuffle", "views", "shard_images"), [(False, 1, 10), (True, 1, 10), (True, 3, 7)])
def test_shares_give_the_bytes_of_one_process(
    tmp_path: Path, codec: str, shuffle: bool, views: int, shard_images: int
) -> None:
    one, shared = tmp_path / "one.tok", tmp_path / "shared.tok"
    seal(many(one, views=views), one, codec, shuffle=shuffle, shard_images=shard_images)
    options = SealOptions(codec, shuffle=shuffle, shard_images=shard_images)
    for rank in (2, 0):  # the second of three is lost
        seal_share(many(shared, views=views), options, rank, 3)
    with pytest.raises(InputError, match="with other options"):
        seal_share(Spool.open(spool_of(shared)), replace(options, shuffle=not shuffle), 1, 3)
    seal(Spool.open(spool_of(shared)), shared, codec, shuffle=shuffle, shard_images=shard_images)
    assert files(one) == files(shared)
    assert Store(one).verify(deep=True) == []


def test_a_shuffled_store_holds_the_same_images_in_another_order(tmp_path: Path) -> None:
    stores = []
    for shuffle in (False, True):
        path = tmp_path / f"{shuffle}.tok"
        seal(many(path), path, shuffle=shuffle, shard_images=16)
        stores.append(Store(path))
    plain, mixed = stores
    assert (plain.manifest.shuffled, mixed.manifest.shuffled) == (False, True)
    keys = plain.column("key")
    place = [keys.index(key) for key in mixed.column("key")]
    assert sorted(place) == list(range(len(plain)))
    assert np.abs(np.diff(place)).mean() > len(plain) / 6  # neighbours were far apart
    np.testing.assert_array_equal(mixed.batch(np.arange(len(mixed))), plain.batch(np.array(place)))
    for name in ("label", "blob", "boxes"):
        assert_same(mixed.column(name), [plain.column(name)[i] for i in place])


def test_memory_does_not_grow_with_the_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["tilework.store.seal"]  # the package has a function of that name
    monkeypatch.setattr(module, "SAMPLE_TOKENS", 1 << 12)  # of many images, a sample is a small part
    peaks = []
    for parts in (40, 80):
        path = tmp_path / f"{parts}.tok"
        spool = Spool.create(spool_of(path), replace(PLAN, parts=parts), CODEBOOK)
        for number in range(parts):
            keys = [f"{number}/{i:06d}.JPEG" for i in range(256)]
            spool.put(number, some([1, 2, 30], 256), {"label": np.arange(256) % 2, "key": keys})
        tracemalloc.start()
        seal(spool, path, "packed", shard_images=1024)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (peaks[1] - peaks[0]) / (40 * 256) < 8  # bytes per image; names alone have 13 characters


@pytest.mark.parametrize("receipt", ["[{", "[]", "{}", '{"shards": [{"file": "../../victim.txt"}]}', "null", ""])
def test_a_receipt_that_is_damaged_or_forged_is_written_again(tmp_path: Path, receipt: str) -> None:
    """It names no file: a range is coded again, and nothing outside the spool is touched."""
    ids = some([3, 7, 9, 11], 12)
    sealed(tmp_path / "whole.tok", ids, shard_images=4)
    spool = spooled(tmp_path / "x.tok", ids)
    seal_share(spool, SealOptions(shard_images=4), 0, 1)
    (tmp_path / "victim.txt").write_text("mine")
    (spool.path / "sealing/00001/range.json").write_text(receipt)
    seal(spool, tmp_path / "x.tok", shard_images=4)
    assert (tmp_path / "victim.txt").read_text() == "mine"
    assert files(tmp_path / "x.tok") == files(tmp_path / "whole.tok")
