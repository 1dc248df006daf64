"""Reading a store: any images in any order, columns, sizes, other processes."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilework.core.errors import DamageError, InputError, TileworkError
from tilework.store import Store, StoreWriter, reader
from tilework.store.columns import pack_column


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, np.ndarray]:
    """2,500 images in shards of 64, for batches across many shards and more than one step of iteration."""
    ids = np.random.default_rng(1).integers(0, 391, (2500, 2, 2))
    path = tmp_path_factory.mktemp("wide") / "wide.tok"
    with StoreWriter(path, np.zeros((391, 1)), ["a"], shard_images=64) as writer:
        writer.add(ids, [0] * 2500, [str(i) for i in range(2500)])
    return Store(path), ids


def test_store_tells_its_contents(tiny: Path, contents: SimpleNamespace) -> None:
    store = Store(tiny)
    assert (len(store), store.grid, store.vocabulary, store.classes) == (7, (2, 3), 10, contents.classes)
    np.testing.assert_array_equal(store.codebook.vectors, contents.codebook)
    assert store.codebook.vectors.dtype == np.float32


def test_path_may_be_a_string(tiny: Path, contents: SimpleNamespace) -> None:
    np.testing.assert_array_equal(Store(str(tiny))[3], contents.ids[3])


def test_all_images_read_back(tiny: Path, contents: SimpleNamespace) -> None:
    codes = Store(tiny).batch(np.arange(7))
    assert codes.dtype == np.int32
    np.testing.assert_array_equal(codes, contents.ids)


@pytest.mark.parametrize("index", range(-7, 7))
def test_one_image_from_either_end(tiny: Path, contents: SimpleNamespace, index: int) -> None:
    np.testing.assert_array_equal(Store(tiny)[index], contents.ids[index])


@pytest.mark.parametrize("index", [7, -8, 10**9, -(10**9)])
def test_index_outside_is_an_index_error(tiny: Path, index: int) -> None:
    with pytest.raises(IndexError, match=f"image {index} of 7"):
        Store(tiny)[index]


@pytest.mark.parametrize("index", [[7], [0, -1], [0, 3, 2**40]])
def test_batch_outside_is_an_index_error(tiny: Path, index: list[int]) -> None:
    with pytest.raises(IndexError, match="of 7"):
        Store(tiny).batch(np.array(index))


@pytest.mark.parametrize("index", [[6, 0, 3], [2, 2, 2, 5, 2], [6, 5, 4, 3, 2, 1, 0], [4], []])
def test_batch_in_any_order_with_repeats(tiny: Path, contents: SimpleNamespace, index: list[int]) -> None:
    codes = Store(tiny).batch(np.array(index, np.int64))
    assert codes.shape == (len(index), 2, 3)
    np.testing.assert_array_equal(codes, contents.ids[index])


@settings(max_examples=40, deadline=None)
@given(index=st.lists(st.integers(0, 2499), max_size=50))
def test_batch_across_many_shards(wide: tuple[Store, np.ndarray], index: list[int]) -> None:
    store, ids = wide
    np.testing.assert_array_equal(store.batch(np.array(index, np.int64)), ids[index])


def test_iteration_gives_every_image_in_order(wide: tuple[Store, np.ndarray]) -> None:
    store, ids = wide
    np.testing.assert_array_equal(np.stack(list(store)), ids)


def test_histogram_counts_every_code(wide: tuple[Store, np.ndarray]) -> None:
    store, ids = wide
    counts = store.histogram()
    assert counts.shape == (391,)
    assert counts.tolist() == [int((ids == code).sum()) for code in range(391)]


def test_what_is_read_is_the_readers_own(tiny: Path, contents: SimpleNamespace) -> None:
    store = Store(tiny)
    store[0][:] = 9
    store.batch(np.arange(7))[:] = 9
    np.testing.assert_array_equal(store.batch(np.arange(7)), contents.ids)


def test_columns_read_back(tiny: Path, contents: SimpleNamespace) -> None:
    store = Store(tiny)
    assert store.column("label").tolist() == contents.labels
    assert store.column("key") == contents.keys


@pytest.mark.parametrize("name", ["lable", "", "../codebook", "../../other"])
def test_unknown_column_is_refused(tiny: Path, name: str) -> None:
    with pytest.raises(TileworkError, match="it has key, label"):
        Store(tiny).column(name)


def test_column_of_another_length_is_refused(tiny: Path, forge: Callable[..., None]) -> None:
    data = pack_column(np.zeros(6, np.uint8))
    (tiny / "columns/label.safetensors").write_bytes(data)
    files = {name: vars(file) for name, file in Store(tiny).manifest.files.items()}
    digest = reader.sha256(tiny / "columns/label.safetensors")
    forge(tiny, files={**files, "columns/label.safetensors": {"bytes": len(data), "sha256": digest}})
    with pytest.raises(DamageError, match=r"column 'label' of .* has 6 values"):
        Store(tiny).column("label")


def test_pickled_store_reads_the_same(tiny: Path, contents: SimpleNamespace) -> None:
    store = Store(tiny)
    store.batch(np.arange(7))  # so that there are mapped shards, which cannot be pickled
    again = pickle.loads(pickle.dumps(store))
    np.testing.assert_array_equal(again.batch(np.arange(7)), contents.ids)
    assert again.column("key") == contents.keys


def test_pickle_holds_only_the_path(wide: tuple[Store, np.ndarray]) -> None:
    wide[0].batch(np.arange(2500))
    assert len(pickle.dumps(wide[0])) < 1000


def test_pickle_of_a_store_that_is_gone_is_refused(tiny: Path) -> None:
    data = pickle.dumps(Store(tiny))
    tiny.rename(tiny.with_name("elsewhere.tok"))
    with pytest.raises(InputError, match="is not a token store"):
        pickle.loads(data)


def test_sizes_add_up_to_the_bytes_on_disk(tiny: Path) -> None:
    sizes = Store(tiny).sizes
    assert sum(sizes.values()) == sum(path.stat().st_size for path in tiny.rglob("*") if path.is_file())
    assert sizes["tokens"] == sum(path.stat().st_size for path in (tiny / "shards").iterdir())
    assert sizes["columns"] == sum(path.stat().st_size for path in (tiny / "columns").iterdir())
    assert sizes["manifest"] == (tiny / "manifest.json").stat().st_size


def test_sound_store_has_no_problems(tiny: Path) -> None:
    assert Store(tiny).verify() == []


def test_opening_maps_no_shard(tiny: Path) -> None:
    for path in (tiny / "shards").iterdir():
        path.unlink()
    assert len(Store(tiny)) == 7
    assert Store(tiny).column("label").shape == (7,)


def test_only_needed_shards_are_opened(tiny: Path, contents: SimpleNamespace) -> None:
    (tiny / "shards/00001.tiles").unlink()
    store = Store(tiny)
    np.testing.assert_array_equal(store.batch(np.array([6, 0, 2])), contents.ids[[6, 0, 2]])
    with pytest.raises(DamageError, match=r"00001\.tiles"):
        store.batch(np.array([0, 3]))


def test_a_damaged_record_leaves_other_groups_readable(tiny: Path, contents: SimpleNamespace) -> None:
    path = tiny / "shards/00000.tiles"
    data = bytearray(path.read_bytes())
    data[48 + 3] ^= 4  # 48 bytes of header, records of 6 x 4 bits = 3 bytes
    path.write_bytes(data)
    store = Store(tiny)
    np.testing.assert_array_equal(store.batch(np.array([3, 5])), contents.ids[[3, 5]])
    with pytest.raises(DamageError, match=r"one of records 0 to 2 of shard 00000\.tiles is damaged"):
        store[1]


@pytest.mark.parametrize(
    "call",
    [lambda s: s.codebook, lambda s: s.column("key"), lambda s: s.verify()],
    ids=["codebook", "column", "verify"],
)
def test_unreadable_file_is_a_tilework_error(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[Store], Any]
) -> None:
    def broken(path: Path) -> str:
        raise OSError(5, "Input/output error", str(path))

    store = Store(tiny)
    monkeypatch.setattr(reader, "sha256", broken)
    try:
        problems = call(store)
    except TileworkError as error:
        problems = [str(error)]
    assert any("safetensors" in problem for problem in problems)


def test_store_reads_without_torch(tiny: Path) -> None:
    code = f"import sys, tilework; s = tilework.open({str(tiny)!r}); s[0], s.codebook, s.column('key'), s.verify()"
    code += "; sys.exit(int('torch' in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
