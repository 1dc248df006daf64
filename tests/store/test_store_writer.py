"""Writing a store: what goes in comes out, and what is wrong leaves nothing behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilework.core.errors import ConfigError, InputError, OutputError
from tilework.store import Plan, Spool, Store, StoreWriter, spool_of

INTEGERS = [np.uint8, np.int8, np.uint16, np.int32, np.int64, np.uint64]


def write(path: Path, ids: Any, labels: Any = None, keys: Any = None, **options: Any) -> Store:
    """A store of eight codes and two classes, added at once."""
    labels = [0] * len(ids) if labels is None else labels
    keys = [str(i) for i in range(len(ids))] if keys is None else keys
    options = {"codebook": np.zeros((8, 2), np.float32), "classes": ["a", "b"], **options}
    with StoreWriter(path, **options) as writer:
        writer.add(ids, labels, keys)
    return Store(path)


def zeros(count: int = 3, height: int = 2, width: int = 2) -> np.ndarray:
    return np.zeros((count, height, width), np.int64)


def files(path: Path) -> dict[str, bytes]:
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def left(tmp_path: Path) -> list[Path]:
    return sorted(tmp_path.rglob("*"))


@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(0, 7), max_size=4).map(sorted), shard_images=st.integers(1, 9))
def test_round_trip_in_any_portions(
    tmp_path_factory: pytest.TempPathFactory, contents: SimpleNamespace, cuts: list[int], shard_images: int
) -> None:
    path = tmp_path_factory.mktemp("portions") / "out.tok"
    with StoreWriter(path, contents.codebook, contents.classes, shard_images=shard_images) as writer:
        for a, b in zip([0, *cuts], [*cuts, 7], strict=True):
            if a < b:
                writer.add(contents.ids[a:b], contents.labels[a:b], contents.keys[a:b])
    store = Store(path)
    np.testing.assert_array_equal(store.batch(np.arange(7)), contents.ids)
    assert (store.column("label").tolist(), store.column("key")) == (contents.labels, contents.keys)
    assert [shard.records for shard in store.manifest.shards[:-1]] == [shard_images] * (-(-7 // shard_images) - 1)
    assert store.verify() == []


def test_portions_do_not_change_a_byte(tmp_path: Path, tiny: Path, contents: SimpleNamespace) -> None:
    path = tmp_path / "single.tok"
    with StoreWriter(path, contents.codebook, contents.classes, licence="none", shard_images=3) as writer:
        for i in range(7):
            writer.add(contents.ids[i : i + 1], contents.labels[i : i + 1], contents.keys[i : i + 1])
    assert files(path) == files(tiny)


def test_portion_without_images_changes_nothing(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "out.tok", np.zeros((8, 2)), ["a"]) as writer:
        writer.add(zeros(2), [0, 0], ["x", "y"])
        writer.add(zeros(0), [], [])
        writer.add(zeros(1), [0], ["z"])
    assert Store(tmp_path / "out.tok").column("key") == ["x", "y", "z"]


def test_a_path_may_be_text(tmp_path: Path) -> None:
    with StoreWriter(str(tmp_path / "out.tok"), np.zeros((8, 2)), ["a"]) as writer:
        writer.add(zeros(2), [0, 0], ["x", "y"])
    assert len(Store(str(tmp_path / "out.tok"))) == 2


def test_writer_copies_what_it_is_given(tmp_path: Path) -> None:
    buffer = zeros(2)
    with StoreWriter(tmp_path / "out.tok", np.zeros((8, 2)), ["a"]) as writer:
        for value in (1, 2, 3):
            buffer[:] = value  # a caller that reuses its memory
            writer.add(buffer, [0, 0], ["x", "y"])
    assert Store(tmp_path / "out.tok").batch(np.arange(6))[:, 0, 0].tolist() == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_any_integer_type(tmp_path: Path, dtype: type[np.integer]) -> None:
    ids = np.arange(8).reshape(2, 2, 2)
    np.testing.assert_array_equal(write(tmp_path / "out.tok", ids.astype(dtype)).batch(np.arange(2)), ids)


def test_portions_of_different_integer_types(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "out.tok", np.zeros((8, 2)), ["a"]) as writer:
        writer.add(zeros(1) + 5, [0], ["x"])
        writer.add((zeros(1) + 7).astype(np.uint64), [0], ["y"])
    assert Store(tmp_path / "out.tok").batch(np.arange(2))[:, 0, 0].tolist() == [5, 7]


def test_codebook_in_another_memory_order(tmp_path: Path) -> None:
    codebook = np.arange(16.0).reshape(2, 8).T
    store = write(tmp_path / "out.tok", zeros(), codebook=codebook)
    np.testing.assert_array_equal(store.codebook.vectors, codebook)
    assert store.codebook.vectors.dtype == np.float32


@pytest.mark.parametrize(("classes", "dtype"), [(1, np.uint8), (256, np.uint8), (257, np.uint16), (65537, np.uint32)])
def test_labels_take_the_narrowest_type(tmp_path: Path, classes: int, dtype: type[np.integer]) -> None:
    labels = [0, classes - 1]
    column = write(tmp_path / "out.tok", zeros(2), labels, classes=[str(i) for i in range(classes)]).column("label")
    assert column.dtype == dtype
    assert column.tolist() == labels


def test_labels_and_keys_may_be_arrays(tmp_path: Path) -> None:
    store = write(tmp_path / "out.tok", zeros(2), np.array([1, 0], np.int8), np.array(["x", "ü"]))
    assert (store.column("label").tolist(), store.column("key")) == ([1, 0], ["x", "ü"])


def test_origin_is_kept(tmp_path: Path) -> None:
    origin = {"tokenizer": {"name": "t", "sha256": "ab"}, "preprocessing": "crop 224", "licence": "CC0"}
    manifest = write(tmp_path / "out.tok", zeros(), **origin).manifest
    assert (manifest.tokenizer, manifest.preprocessing, manifest.licence) == tuple(origin.values())
    assert manifest.software.startswith("tilework ")


def test_nothing_appears_before_the_end(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "out.tok", np.zeros((8, 2)), ["a"], shard_images=1) as writer:
        writer.add(zeros(), [0] * 3, list("abc"))
        assert not (tmp_path / "out.tok").exists()
    assert left(tmp_path)[0] == tmp_path / "out.tok"
    assert [path.name for path in tmp_path.iterdir()] == ["out.tok"]


@pytest.mark.parametrize("label", [-1, 2, 300, 2**40])
def test_label_out_of_range_is_refused(tmp_path: Path, label: int) -> None:
    with pytest.raises(InputError, match=rf"labels .*{label}.* do not fit 2 classes"):
        write(tmp_path / "out.tok", zeros(), [0, label, 1])
    assert left(tmp_path) == []


@pytest.mark.parametrize(("labels", "keys"), [(2, 3), (3, 2), (4, 4), (0, 3)])
def test_mismatched_counts_are_refused(tmp_path: Path, labels: int, keys: int) -> None:
    with pytest.raises(InputError, match=f"3 images with {labels} labels and {keys} keys"):
        write(tmp_path / "out.tok", zeros(3), [0] * labels, ["k"] * keys)
    assert left(tmp_path) == []


def test_another_grid_is_refused(tmp_path: Path) -> None:
    def fill() -> None:
        with StoreWriter(tmp_path / "out.tok", np.zeros((8, 2)), ["a"]) as writer:
            writer.add(zeros(1, 2, 3), [0], ["x"])
            writer.add(zeros(1, 3, 2), [0], ["y"])

    with pytest.raises(InputError, match=r"grid \(3, 2\) does not fit a store of \(2, 3\)"):
        fill()
    assert left(tmp_path) == []


def test_empty_store_is_refused(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "out.tok", np.zeros((8, 2)), ["a"])  # kept: the garbage collector must not tidy up
    with pytest.raises(InputError, match=r"no images for .*out\.tok"), writer:
        pass
    assert left(tmp_path) == []


def test_store_of_empty_portions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no images for .*out\.tok"):
        write(tmp_path / "out.tok", zeros(0))
    assert left(tmp_path) == []


@pytest.mark.parametrize("shape", [(3, 0, 2), (3, 2, 0), (3, 0), (3,), (3, 2, 2, 0), (3, 2, 2, 1, 1)])
def test_ids_that_are_no_grids_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError):
        write(tmp_path / "out.tok", np.zeros(shape, np.int64))
    assert left(tmp_path) == []


def test_ids_that_are_no_integers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        write(tmp_path / "out.tok", zeros().astype(np.float32))
    assert left(tmp_path) == []


@pytest.mark.parametrize("code", [-1, 8])
def test_code_outside_the_codebook_is_refused(tmp_path: Path, code: int) -> None:
    ids = zeros()
    ids[1, 1, 0] = code
    with pytest.raises(InputError, match=rf"code {code} \(position 2, image 1\) is outside 0\.\.7"):
        write(tmp_path / "out.tok", ids)
    assert left(tmp_path) == []


def test_refused_code_is_counted_from_the_first_image(tmp_path: Path) -> None:
    ids = zeros(6)
    ids[4, 0, 1] = 99
    with pytest.raises(InputError, match=r"code 99 \(position 1, image 4\)"):
        write(tmp_path / "out.tok", ids, shard_images=2)


def test_refused_code_is_counted_over_portions(tmp_path: Path) -> None:
    def fill() -> None:
        with StoreWriter(tmp_path / "out.tok", np.zeros((8, 2)), ["a"], shard_images=4) as writer:
            writer.add(zeros(3), [0] * 3, list("abc"))
            writer.add(zeros(3) + np.array([0, 0, 99])[:, None, None], [0] * 3, list("def"))

    with pytest.raises(InputError, match=r"code 99 \(position 0, image 5\)"):
        fill()


@pytest.mark.parametrize("codebook", [np.zeros((0, 2)), np.zeros(8), np.zeros((8, 2, 2))])
def test_codebook_that_is_no_table_is_refused(tmp_path: Path, codebook: np.ndarray) -> None:
    with pytest.raises(InputError):
        write(tmp_path / "out.tok", zeros(), codebook=codebook)
    assert left(tmp_path) == []


@pytest.mark.parametrize("shard_images", [0, -1])
def test_shards_of_no_images_are_refused(tmp_path: Path, shard_images: int) -> None:
    with pytest.raises(InputError):
        write(tmp_path / "out.tok", zeros(), shard_images=shard_images)
    assert left(tmp_path) == []


def test_unknown_codec_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown codec 'paked': did you mean 'packed'"):
        write(tmp_path / "out.tok", zeros(), codec="paked")
    assert left(tmp_path) == []


def test_file_name_that_is_not_unicode_is_kept_or_refused(tmp_path: Path) -> None:
    name = b"photo-\xff.png".decode("utf-8", "surrogateescape")  # what os.listdir gives for such a file
    try:
        store = write(tmp_path / "out.tok", zeros(1), keys=[name])
    except InputError:
        assert left(tmp_path) == []
    else:
        assert store.column("key") == [name]


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("shard_images", [1, 100])
def test_failure_in_the_block_leaves_nothing(tmp_path: Path, kind: type[BaseException], shard_images: int) -> None:
    def fill() -> None:
        with StoreWriter(tmp_path / "out.tok", np.zeros((8, 2)), ["a"], shard_images=shard_images) as writer:
            writer.add(zeros(), [0] * 3, list("abc"))
            raise kind("stop")

    with pytest.raises(kind, match="stop"):
        fill()
    assert left(tmp_path) == []


@pytest.mark.parametrize("after", range(8))
def test_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    calls, real = 0, os.fsync

    def fsync(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls > after:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OutputError, match=r"cannot write .*No space left"):
        write(tmp_path / "out.tok", zeros())
    assert left(tmp_path) == []


def test_taken_path_is_refused_and_kept(tmp_path: Path) -> None:
    before = files(write(tmp_path / "out.tok", zeros()).path)
    with pytest.raises(OutputError, match=r"out\.tok exists"):
        write(tmp_path / "out.tok", zeros() + 1)
    assert files(tmp_path / "out.tok") == before


def test_writer_can_be_used_again_after_a_failure(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "out.tok", np.zeros((8, 2)), ["a"])
    with pytest.raises(InputError), writer:
        writer.add(zeros(2) + 99, [0, 0], ["x", "y"])
    with writer:
        writer.add(zeros(1) + 4, [0], ["z"])
    assert Store(tmp_path / "out.tok").column("key") == ["z"]


@pytest.mark.parametrize("kind", ["notes", "tokenize"])
def test_what_others_left_in_the_spool_is_refused_and_kept(tmp_path: Path, kind: str) -> None:
    spool = spool_of(tmp_path / "x.tok")
    if kind == "notes":
        (spool / "notes").mkdir(parents=True)
        (spool / "notes/thesis.txt").write_text("x")
    else:  # an interrupted 'tilework tokenize': its plan says how many parts there will be
        plan = Plan(vocabulary=8, grid=(2, 2), classes=("a", "b"), parts=3)
        Spool.create(spool, plan, np.zeros((8, 2), np.float32)).put(0, zeros(), {"label": np.zeros(3, np.int64)})
    before = files(spool)
    with pytest.raises(OutputError, match="of another command"):
        write(tmp_path / "x.tok", zeros())
    assert files(spool) == before
    assert not (tmp_path / "x.tok").exists()


def test_what_a_killed_writer_left_is_cleared(tmp_path: Path) -> None:
    spool = spool_of(tmp_path / "x.tok")
    writer = StoreWriter(tmp_path / "x.tok", np.zeros((8, 2), np.float32), ["a", "b"]).__enter__()
    writer.add(zeros(), [0, 1, 0], ["x", "y", "z"])
    writer._flush()
    writer._locks.close()  # as the end of the process does
    assert {"writer", "plan.json", "parts"} <= {file.name for file in spool.iterdir()}
    (spool / ".plan.json.0.tmp").write_text("half")
    assert len(write(tmp_path / "x.tok", zeros(5))) == 5
    Spool.create(spool_of(tmp_path / "y.tok"), Plan(8, (2, 2), ("a", "b")), np.zeros((8, 2), np.float32))
    assert len(write(tmp_path / "y.tok", zeros(4))) == 4  # of an earlier version, or half removed
    assert sorted(file.name for file in tmp_path.iterdir()) == ["x.tok", "y.tok"]


@pytest.mark.parametrize("kind", ["float32", "bool", "timedelta64[s]", "complex64", "U1"])
def test_codes_that_are_no_integers_are_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(InputError, match="integers are needed"):
        write(tmp_path / "x.tok", zeros().astype(kind))
    assert left(tmp_path) == []
