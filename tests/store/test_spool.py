"""Spools: parts of any content, written by any process in any order, become the same store."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilework.core.errors import DamageError, InputError, OutputError, TileworkError
from tilework.store import Plan, Spool, Store, StoreWriter, seal, spool_of

CUTS = (0, 3, 4, 9)  # images 0-2, 3, and 4-8 are the parts
PLAN = Plan(vocabulary=10, grid=(2, 3), classes=("ant", "bee", "cat"), licence="none", parts=3, source="abc")
CODEBOOK = np.random.default_rng(1).normal(size=(10, 2)).astype(np.float32)
IDS = np.random.default_rng(0).integers(0, 10, (9, 2, 3))
KINDS = ("array", "text", "bytes", "ragged")
COLUMNS: dict[str, Any] = {
    "label": np.arange(9) % 3,
    "key": ["a.png", "", "ü/ß.png", "図.png", "a b", "\U0001f5bc", "z", "a\0b", "\n"],
    "score": np.random.default_rng(2).normal(size=(9, 2)).astype(np.float32),
    "raw": [b"", b"\0\xff", b"x" * 70_000, b"a", b"", b"bc", b"\n", b"d", b"e"],
    "boxes": [np.arange(4 * n, dtype=np.int16).reshape(n, 4) for n in (0, 1, 5, 2, 0, 0, 3, 1, 1)],
}

linux = pytest.mark.skipif(os.name != "posix", reason="needs fork")


def portion(number: int) -> tuple[np.ndarray, dict[str, Any]]:
    """Codes and columns of a part."""
    cut = slice(*CUTS[number : number + 2])
    return IDS[cut], {name: values[cut] for name, values in COLUMNS.items()}


def spooled(store: Path, order: tuple[int, ...] = (0, 1, 2)) -> Spool:
    spool = Spool.create(spool_of(store), PLAN, CODEBOOK)
    for number in order:
        spool.put(number, *portion(number))
    return spool


def files(path: Path) -> dict[str, bytes]:
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def assert_same(found: Any, values: Any) -> None:
    """Values of a column, whatever their kind."""
    assert len(found) == len(values)
    if isinstance(values, np.ndarray):
        np.testing.assert_array_equal(found, values)
        return
    for one, other in zip(found, values, strict=True):
        assert type(one) is type(other)
        if isinstance(other, np.ndarray):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(one, other)


def assert_holds(store: Store, ids: np.ndarray, columns: Mapping[str, Any]) -> None:
    """Every view of every image, and every column."""
    every = np.arange(len(ids))
    for view in range(store.views):
        np.testing.assert_array_equal(store.used[store.batch(every, view)], ids[:, view] if store.views > 1 else ids)
    assert {entry.name for entry in store.manifest.columns} == set(columns)
    for name, values in columns.items():
        assert_same(store.column(name), values)
    assert store.verify(deep=True, threads=1) == []


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Bytes of the store as one process writes it at once."""
    path = tmp_path_factory.mktemp("single") / "out.tok"
    more = {name: values for name, values in COLUMNS.items() if name not in ("label", "key")}
    with StoreWriter(path, CODEBOOK, PLAN.classes, licence="none", shard_images=4) as writer:
        writer.add(IDS, COLUMNS["label"], COLUMNS["key"], **more)
    return files(path)


def test_new_spool_is_empty(tmp_path: Path) -> None:
    spool = Spool.create(tmp_path / "out.tok.spool", PLAN, CODEBOOK)
    assert (spool.plan, spool.done()) == (PLAN, [])
    np.testing.assert_array_equal(spool.codebook, CODEBOOK)


def test_spool_lies_beside_its_store() -> None:
    assert spool_of(Path("a/train.tok")) == Path("a/train.tok.spool")


@pytest.mark.parametrize("again", ["create", "open"])
def test_spool_is_found_again_with_its_parts(tmp_path: Path, again: str) -> None:
    before = spooled(tmp_path / "out.tok", (2, 0))
    path = before.path
    found = Spool.open(path) if again == "open" else Spool.create(path, PLAN, CODEBOOK.astype(np.float64, order="F"))
    assert (found.plan, found.done()) == (PLAN, [0, 2])
    np.testing.assert_array_equal(found.get(2).ids.reshape(-1, 2, 3), IDS[4:])


@pytest.mark.parametrize(
    "change",
    [
        {"grid": (3, 2)},
        {"grid": (6,)},
        {"classes": ("ant", "bee", "dog")},
        {"views": 2},
        {"tokenizer": {"name": "t"}},
        {"preprocessing": "crop"},
        {"frame": "squash"},
        {"licence": "CC0"},
        {"parts": 4},
        {"source": "abd"},
    ],
    ids=str,
)
def test_another_plan_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    spool = spooled(tmp_path / "out.tok")
    before = files(spool.path)
    with pytest.raises(OutputError, match=r"out\.tok\.spool holds codes of other images"):
        Spool.create(spool.path, replace(PLAN, **change), CODEBOOK)
    assert files(spool.path) == before


def test_another_codebook_is_refused(tmp_path: Path) -> None:
    spool = spooled(tmp_path / "out.tok")
    with pytest.raises(OutputError, match="holds codes of other images"):
        Spool.create(spool.path, PLAN, CODEBOOK + 1)
    with pytest.raises(OutputError, match="holds codes of other images"):
        Spool.create(spool.path, replace(PLAN, vocabulary=11), np.zeros((11, 2)))


@pytest.mark.parametrize("codebook", [np.zeros((9, 2)), np.zeros(10), np.zeros((0, 2)), np.zeros((10, 2, 2))])
def test_codebook_that_does_not_fit_is_refused(tmp_path: Path, codebook: np.ndarray) -> None:
    with pytest.raises(InputError, match="for 10 codes"):
        Spool.create(tmp_path / "spool", PLAN, codebook)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("codebook", "match"),
    [
        (np.full((10, 2), "x"), "the codebook holds <U1: real numbers are needed"),
        (np.ones((10, 2), complex), "the codebook holds complex128: real"),
        (np.ones((10, 2), [("a", "<f4")]), "the codebook holds .*: real"),
        (np.full((10, 2), 1e300), "numbers that are too large: at most 3.4e38 can be stored"),
    ],
)
@pytest.mark.parametrize("again", [False, True])
def test_codebook_of_other_kinds_is_refused(tmp_path: Path, codebook: np.ndarray, match: str, again: bool) -> None:
    if again:
        Spool.create(tmp_path / "spool", PLAN, CODEBOOK)
    before = files(tmp_path)
    with pytest.raises(InputError, match=match):
        Spool.create(tmp_path / "spool", PLAN, codebook)
    assert files(tmp_path) == before


def test_a_plan_goes_on_when_only_the_bytes_of_files_differ(tmp_path: Path) -> None:
    """An image that was repaired meanwhile, or a spool of a version that did not count them."""
    store = tmp_path / "out.tok"
    first = Spool.create(spool_of(store), PLAN, CODEBOOK)
    again = Spool.create(spool_of(store), replace(PLAN, original_bytes=900), CODEBOOK)
    assert again.plan == first.plan


@pytest.mark.parametrize("change", [{"grid": ()}, {"grid": (2, 0)}, {"grid": (1, 2, 3, 4)}, {"views": 0}], ids=str)
def test_plan_of_no_grid_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="views"):
        Spool.create(tmp_path / "spool", replace(PLAN, **change), CODEBOOK)
    assert list(tmp_path.iterdir()) == []


def test_directory_that_is_no_spool_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is not a spool: it has no plan\.json"):
        Spool.open(tmp_path)


@pytest.mark.parametrize("name", ["plan.json", "codebook.safetensors"])
@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"no": 1}', b"\xff" * 40])
def test_damaged_spool_is_refused(tmp_path: Path, name: str, data: bytes) -> None:
    spool = spooled(tmp_path / "out.tok")
    (spool.path / name).write_bytes(data)
    with pytest.raises(DamageError, match=r"out\.tok\.spool cannot be read"):
        Spool.open(spool.path)


def test_file_in_place_of_a_spool_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spool").write_bytes(b"mine")
    with pytest.raises(OutputError, match="spool"):
        Spool.create(tmp_path / "spool", PLAN, CODEBOOK)
    assert files(tmp_path) == {"spool": b"mine"}


def test_columns_of_every_kind_go_through_a_part(tmp_path: Path) -> None:
    spool = spooled(tmp_path / "out.tok")
    for number in range(3):
        ids, columns = portion(number)
        part = spool.get(number)
        np.testing.assert_array_equal(part.ids.reshape(-1, 2, 3), ids)
        assert part.columns.keys() == columns.keys()
        for name, values in columns.items():
            assert_same(part.columns[name], values)


def test_part_without_columns(tmp_path: Path) -> None:
    spool = Spool.create(tmp_path / "spool", PLAN, CODEBOOK)
    spool.put(0, IDS, {})
    assert spool.get(0).columns == {}


def test_part_written_twice_has_the_same_bytes(tmp_path: Path) -> None:
    spool = spooled(tmp_path / "out.tok")
    before = files(spool.path)
    for number in (2, 0, 1):
        ids, columns = portion(number)
        spool.put(number, ids.astype(np.uint8), dict(reversed(columns.items())))
    assert files(spool.path) == before


def test_part_without_images_changes_nothing(tmp_path: Path, single: dict[str, bytes]) -> None:
    spool = spooled(tmp_path / "out.tok")
    spool.put(3, IDS[:0], {name: values[:0] for name, values in COLUMNS.items()})
    seal(spool, tmp_path / "out.tok", cut=False, parts=4, shard_images=4)
    assert files(tmp_path / "out.tok") == single


def test_done_lists_whole_parts_only(tmp_path: Path) -> None:
    spool = spooled(tmp_path / "out.tok", (2, 0))
    spool.put(100_000, *portion(1))
    (spool.path / "parts/.00001.part.0123abcd.tmp").write_bytes(b"half")  # by a process that was killed
    assert spool.done() == [0, 2, 100_000]


@pytest.mark.parametrize(
    ("ids", "columns"),
    [
        (IDS[0], {}),
        (IDS.reshape(9, 3, 2), {}),
        (IDS.reshape(9, 6), {}),
        (IDS[:, None], {}),
        (IDS.astype(np.float32), {}),
        (IDS + 1, {}),
        (IDS - 1, {}),
        (IDS, {"x": np.arange(8)}),
        (IDS, {"x": ["a"] * 10}),
        (IDS, {"x": [b"a"] * 8 + ["a"]}),
        (IDS, {"x": [None] * 9}),
        (IDS, {"x": list(range(9))}),
        (IDS, {"x": [np.zeros(2)] * 8 + [np.zeros((2, 1))]}),
        (IDS, {"x": [np.zeros(2)] * 8 + [np.zeros(2, int)]}),
        (IDS, {"x": np.array(["a"] * 9)}),
        (IDS, {"x": np.zeros(9, complex)}),
        (IDS, {"x": np.array([object()] * 9)}),
        (IDS, {"../x": np.arange(9)}),
        (IDS, {"a/b": np.arange(9)}),
        (IDS, {"": np.arange(9)}),
    ],
    ids=range(20),
)
def test_part_that_does_not_fit_is_refused(tmp_path: Path, ids: np.ndarray, columns: dict[str, Any]) -> None:
    spool = Spool.create(tmp_path / "spool", PLAN, CODEBOOK)
    with pytest.raises(InputError):
        spool.put(0, ids, columns)
    assert spool.done() == []
    assert not list(tmp_path.rglob("*.tmp"))


def test_damaged_part_is_refused_anywhere(tmp_path: Path) -> None:
    spool = Spool.create(spool_of(tmp_path / "out.tok"), replace(PLAN, parts=1), CODEBOOK)
    spool.put(0, IDS, {"key": COLUMNS["key"]})
    path = spool.path / "parts/00000.part"
    whole = path.read_bytes()
    flipped = [whole[:i] + bytes([whole[i] ^ 4]) + whole[i + 1 :] for i in range(0, len(whole), 5)]
    for data in (b"", whole[:-1], whole[: len(whole) // 2], whole + b"\0", *flipped):
        path.unlink()  # a new file: the old one may still be mapped
        path.write_bytes(data)
        with pytest.raises(DamageError, match=r"00000\.part"):
            spool.get(0)
    with pytest.raises(DamageError, match=r"00000\.part"):
        seal(spool, tmp_path / "out.tok")
    assert not (tmp_path / "out.tok").exists()
    spool.put(0, IDS, {"key": COLUMNS["key"]})  # which cures it
    seal(spool, tmp_path / "out.tok")
    assert_holds(Store(tmp_path / "out.tok"), IDS, {"key": COLUMNS["key"]})


def test_part_under_another_number_is_refused(tmp_path: Path) -> None:
    spool = spooled(tmp_path / "out.tok")
    (spool.path / "parts/00001.part").replace(spool.path / "parts/00002.part")
    with pytest.raises(DamageError, match=r"00002\.part"):
        spool.get(2)


def test_part_of_another_plan_is_refused(tmp_path: Path) -> None:
    spool = spooled(tmp_path / "out.tok")
    other = Spool.create(tmp_path / "other.spool", replace(PLAN, grid=(6, 6)), CODEBOOK)
    other.put(0, np.zeros((2, 6, 6), int), {})
    (other.path / "parts/00000.part").replace(spool.path / "parts/00000.part")
    with pytest.raises(DamageError):
        spool.get(0)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0, 1)])
def test_order_of_parts_does_not_change_a_byte(
    tmp_path: Path, single: dict[str, bytes], order: tuple[int, ...]
) -> None:
    seal(spooled(tmp_path / "out.tok", order), tmp_path / "out.tok", cut=False, shard_images=4)
    assert files(tmp_path / "out.tok") == single
    assert [path.name for path in tmp_path.iterdir()] == ["out.tok"]


@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_size_of_parts_does_not_change_a_byte(tmp_path: Path, single: dict[str, bytes], size: int) -> None:
    spool = Spool.create(spool_of(tmp_path / "out.tok"), replace(PLAN, parts=0), CODEBOOK)
    starts = range(0, 9, size)
    for number, at in enumerate(starts):
        spool.put(number, IDS[at : at + size], {name: values[at : at + size] for name, values in COLUMNS.items()})
    seal(spool, tmp_path / "out.tok", cut=False, parts=len(starts), shard_images=4)
    assert files(tmp_path / "out.tok") == single


def fill(path: Path, numbers: list[int]) -> None:
    """What a process of several does."""
    spool = Spool.create(path, PLAN, CODEBOOK)
    for number in numbers:
        spool.put(number, *portion(number))


@linux
@pytest.mark.parametrize("shares", [[[0], [1], [2]], [[2, 1], [0]], [[0, 1, 2], [2, 1, 0]]], ids=str)
def test_parts_of_several_processes(tmp_path: Path, single: dict[str, bytes], shares: list[list[int]]) -> None:
    context = multiprocessing.get_context("fork")
    path = spool_of(tmp_path / "out.tok")
    workers = [context.Process(target=fill, args=(path, share)) for share in shares]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * len(shares)
    seal(Spool.open(path), tmp_path / "out.tok", cut=False, shard_images=4)
    assert files(tmp_path / "out.tok") == single


def test_part_that_comes_too_late_is_refused(tmp_path: Path) -> None:
    spool = spooled(tmp_path / "out.tok")
    seal(Spool.open(spool.path), tmp_path / "out.tok")
    with pytest.raises(TileworkError, match=r"out\.tok"):
        spool.put(1, *portion(1))  # by a process that did not know
    assert [path.name for path in tmp_path.iterdir()] == ["out.tok"]


def test_missing_parts_are_named(tmp_path: Path) -> None:
    spool = spooled(tmp_path / "out.tok", (1,))
    with pytest.raises(InputError, match=r"out\.tok\.spool lacks 2 of 3 parts \(0, 2\)"):
        seal(spool, tmp_path / "out.tok")
    assert spool.done() == [1]
    assert not (tmp_path / "out.tok").exists()


def test_many_missing_parts_are_shortened(tmp_path: Path) -> None:
    spool = spooled(tmp_path / "out.tok", (0, 2))
    with pytest.raises(InputError, match=r"lacks 998 of 1000 parts \(1, 3, 4, 5, 6, \.\.\.\)"):
        seal(spool, tmp_path / "out.tok", parts=1000)


def test_part_beyond_the_plan_is_refused(tmp_path: Path) -> None:
    spool = spooled(tmp_path / "out.tok")
    spool.put(7, *portion(0))
    with pytest.raises(InputError, match="a part 7 beyond the 3"):
        seal(spool, tmp_path / "out.tok")


def test_empty_spool_is_refused(tmp_path: Path) -> None:
    spool = Spool.create(spool_of(tmp_path / "out.tok"), replace(PLAN, parts=0), CODEBOOK)
    with pytest.raises(InputError, match="no images"):
        seal(spool, tmp_path / "out.tok")
    assert not (tmp_path / "out.tok").exists()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"x": np.zeros(9)}, {"y": np.zeros(9)}),
        ({"x": np.zeros(9)}, {}),
        ({"x": np.zeros(9)}, {"x": ["a"] * 9}),
        ({"x": ["a"] * 9}, {"x": [b"a"] * 9}),
        ({"x": [np.zeros(1)] * 9}, {"x": [np.zeros(1, np.float32)] * 9}),
        ({"x": np.zeros((9, 2))}, {"x": np.zeros((9, 3))}),
        ({"x": np.zeros(9)}, {"x": np.zeros((9, 1))}),
    ],
    ids=range(7),
)
def test_parts_with_different_columns_are_refused(tmp_path: Path, one: dict[str, Any], other: dict[str, Any]) -> None:
    spool = Spool.create(spool_of(tmp_path / "out.tok"), replace(PLAN, parts=2), CODEBOOK)
    spool.put(0, IDS, one)
    spool.put(1, IDS, other)
    with pytest.raises(InputError, match="columns"):
        seal(spool, tmp_path / "out.tok")
    assert not (tmp_path / "out.tok").exists()


def test_arrays_of_different_types_are_kept_or_refused(tmp_path: Path) -> None:
    spool = Spool.create(spool_of(tmp_path / "out.tok"), replace(PLAN, parts=2), CODEBOOK)
    spool.put(0, IDS[:1], {"x": np.array([2**63 - 1])})
    spool.put(1, IDS[1:2], {"x": np.array([2**64 - 1], np.uint64)})  # together they would be float64
    try:
        seal(spool, tmp_path / "out.tok")
    except InputError:
        return
    assert [int(value) for value in Store(tmp_path / "out.tok").column("x")] == [2**63 - 1, 2**64 - 1]


@pytest.mark.parametrize("label", [np.array([0.0, 0.75]), np.array([[0], [1]]), ["0", "1"], [b"0", b"1"]], ids=repr)
def test_labels_that_are_no_numbers_of_classes_are_kept_or_refused(tmp_path: Path, label: Any) -> None:
    spool = Spool.create(spool_of(tmp_path / "out.tok"), replace(PLAN, parts=1), CODEBOOK)
    try:
        spool.put(0, IDS[:2], {"label": label})
        seal(spool, tmp_path / "out.tok")
    except InputError:
        return
    assert_same(Store(tmp_path / "out.tok").column("label"), label)


def test_arrays_without_entries_are_kept_or_refused(tmp_path: Path) -> None:
    values = [np.zeros((3, 0)), np.zeros((1, 0))]
    spool = Spool.create(spool_of(tmp_path / "out.tok"), replace(PLAN, parts=1), CODEBOOK)
    try:
        spool.put(0, IDS[:2], {"x": values})
        seal(spool, tmp_path / "out.tok")
    except InputError:
        return
    assert_same(Store(tmp_path / "out.tok").column("x"), values)


def test_text_that_is_not_unicode_is_kept_or_refused(tmp_path: Path) -> None:
    values = ["\udcff", "\ud800"]  # a byte of a file name; half a character, as JSON can hold
    spool = Spool.create(spool_of(tmp_path / "out.tok"), replace(PLAN, parts=1), CODEBOOK)
    try:
        spool.put(0, IDS[:2], {"x": values})
        seal(spool, tmp_path / "out.tok")
    except InputError:
        return
    assert_same(Store(tmp_path / "out.tok").column("x"), values)


@pytest.mark.parametrize("number", [-1, 2**64])
def test_part_of_no_possible_number_is_refused(tmp_path: Path, number: int) -> None:
    spool = Spool.create(tmp_path / "spool", PLAN, CODEBOOK)
    with pytest.raises(TileworkError):
        spool.put(number, IDS, {})
    assert spool.done() == []


@pytest.mark.parametrize("grid", [(1,), (7,), (1, 1), (3, 5)])
@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("codec", ["packed", "rans", "rans-context"])
def test_sequences_and_views(tmp_path: Path, grid: tuple[int, ...], views: int, codec: str) -> None:
    shape = (views, *grid) if views > 1 else grid
    ids = np.random.default_rng(0).integers(0, 10, (9, *shape))
    plan = replace(PLAN, grid=grid, views=views)
    spool = Spool.create(spool_of(tmp_path / "out.tok"), plan, CODEBOOK)
    for number in (1, 2, 0):
        spool.put(number, ids[slice(*CUTS[number : number + 2])], {})
    seal(spool, tmp_path / "out.tok", codec, shard_images=2)
    store = Store(tmp_path / "out.tok")
    assert (store.grid, store.views, len(store)) == (grid, views, 9)
    assert [shard.records for shard in store.manifest.shards] == [2 * views] * 4 + [views]
    assert_holds(store, ids, {})


@pytest.mark.parametrize("vocabulary", [1, 2, 3, 255, 256, 257, 2**12 + 1, 2**16, 2**16 + 1, 2**20])
@pytest.mark.parametrize("cut", [False, True])
def test_any_vocabulary(tmp_path: Path, vocabulary: int, cut: bool) -> None:
    ids = np.random.default_rng(0).integers(0, vocabulary, (4, 2, 3))
    ids[0, 0, :2] = 0, vocabulary - 1
    codebook = np.arange(vocabulary, dtype=np.float32)[:, None]
    spool = Spool.create(spool_of(tmp_path / "out.tok"), replace(PLAN, vocabulary=vocabulary, parts=1), codebook)
    spool.put(0, ids, {})
    seal(spool, tmp_path / "out.tok", cut=cut)
    store = Store(tmp_path / "out.tok")
    assert store.vocabulary == (len(np.unique(ids)) if cut else vocabulary)
    np.testing.assert_array_equal(store.codebook.vectors[store.batch(np.arange(4))][..., 0], ids)
    assert_holds(store, ids, {})


def test_vocabulary_above_the_largest_is_refused(tmp_path: Path) -> None:
    codebook = np.zeros((2**20 + 1, 1), np.float32)
    with pytest.raises(InputError, match="1048577 codes: at most 1048576 can be stored"):
        Spool.create(tmp_path / "spool", replace(PLAN, vocabulary=len(codebook)), codebook)
    writer = StoreWriter(tmp_path / "out.tok", codebook, ["a"])
    with pytest.raises(InputError, match="at most 1048576 codes"), writer:
        writer.add(IDS, [0] * 9, list("abcdefghi"))
    assert list(tmp_path.iterdir()) == []


def values_of(draw: st.DrawFn, kind: str, count: int) -> Any:
    """Values of a column; ragged arrays have any type and form."""
    if kind == "text":
        return draw(st.lists(st.text(max_size=4), min_size=count, max_size=count))
    if kind == "bytes":
        return draw(st.lists(st.binary(max_size=5), min_size=count, max_size=count))
    dtype = draw(st.sampled_from(["<i8", ">u2", "?", "<f4", "|i1"]))
    shape = draw(st.sampled_from([(), (3,), (1, 2)]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    if kind == "array":
        return rng.integers(0, 100, (count, *shape)).astype(dtype)
    lengths = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    return [rng.integers(0, 100, (length, *shape)).astype(dtype) for length in lengths]


@st.composite
def contents(draw: st.DrawFn) -> tuple[Plan, np.ndarray, dict[str, Any], list[int]]:
    """Images of any grid and views, columns of any kind, and where they are cut into parts."""
    sides = st.integers(1, 4)
    grid = draw(st.one_of(st.tuples(sides), st.tuples(sides, sides)))
    views, count = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    vocabulary = draw(st.sampled_from([1, 2, 17, 300, 5000]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    ids = rng.integers(0, vocabulary, (count, views, *grid) if views > 1 else (count, *grid))
    kinds = draw(st.lists(st.sampled_from(KINDS), max_size=3))
    columns = {f"c{i}": values_of(draw, kind, count) for i, kind in enumerate(kinds)}
    cuts = draw(st.sets(st.integers(1, count)).map(lambda found: sorted({0, count, *found})))
    return Plan(vocabulary, grid, ("a",), views), ids, columns, cuts


def little(value: Any) -> Any:
    """An array as it comes back: little-endian."""
    return value.astype(value.dtype.newbyteorder("<")) if isinstance(value, np.ndarray) else value


@settings(max_examples=40, deadline=None)
@given(what=contents(), cut=st.booleans(), shard_images=st.integers(1, 7))
def test_round_trip_of_anything(
    tmp_path_factory: pytest.TempPathFactory,
    what: tuple[Plan, np.ndarray, dict[str, Any], list[int]],
    cut: bool,
    shard_images: int,
) -> None:
    plan, ids, columns, cuts = what
    path = tmp_path_factory.mktemp("any") / "out.tok"
    spool = Spool.create(spool_of(path), plan, np.arange(2.0 * plan.vocabulary).reshape(-1, 2))
    for number in reversed(range(len(cuts) - 1)):
        place = slice(cuts[number], cuts[number + 1])
        spool.put(number, ids[place], {name: values[place] for name, values in columns.items()})
    seal(spool, path, cut=cut, parts=len(cuts) - 1, shard_images=shard_images)
    back = {name: little(v) if isinstance(v, np.ndarray) else list(map(little, v)) for name, v in columns.items()}
    assert_holds(Store(path), ids, back)
