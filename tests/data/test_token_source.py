"""Token stores as training data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tilework.core.errors import DamageError, InputError
from tilework.data import Loader, TokenSource, in_order
from tilework.store import Store, StoreWriter

IDS = np.random.default_rng(0).integers(0, 50, (7, 4, 6))
LABELS = [0, 1, 2, 1, 0, 2, 2]
CODEBOOK = np.random.default_rng(1).normal(size=(50, 3)).astype(np.float32)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    with StoreWriter(tmp_path / "a.tok", CODEBOOK, ("cat", "dog", "eel"), shard_images=3) as writer:
        writer.add(IDS, LABELS, [f"{i}.jpg" for i in range(7)])
    return Store(tmp_path / "a.tok")


def test_source_describes_itself(store: Store) -> None:
    source = TokenSource(store)
    assert (source.stage, source.grid, source.classes, len(source)) == ("ids", (4, 6), ("cat", "dog", "eel"), 7)
    assert source.codebook is not None
    assert np.array_equal(source.codebook.vectors, CODEBOOK)


def test_batch_holds_codes_labels_and_numbers(store: Store) -> None:
    batch = TokenSource(store).batch(np.array([6, 0, 3, 6]))
    assert batch.x.dtype == torch.int32
    assert np.array_equal(batch.x.numpy(), IDS[[6, 0, 3, 6]])
    assert batch.target.ids.tolist() == [[2], [0], [1], [2]]
    assert batch.target.ids.dtype == torch.int64
    assert batch.target.weight.tolist() == [[1.0]] * 4
    assert batch.index.tolist() == [6, 0, 3, 6]


def test_loader_and_in_order_read_it(store: Store) -> None:
    source = TokenSource(store)
    assert np.array_equal(torch.cat([b.x for b in in_order(source, 2)]).numpy(), IDS)
    shuffled = next(Loader(source, batch=7).run(0, 1))
    assert np.array_equal(shuffled.x.numpy(), IDS[shuffled.index.numpy()])


def test_same_classes_are_accepted(store: Store) -> None:
    assert TokenSource(store, ("cat", "dog", "eel")).classes == store.classes


@pytest.mark.parametrize("classes", [("dog", "cat", "eel"), ("owl", "cat", "dog", "eel")])
def test_classes_are_numbered_as_given(store: Store, classes: tuple[str, ...]) -> None:
    known = TokenSource(store)
    names = [known.classes[label] for label in known.labels]
    found = TokenSource(store, classes)
    assert found.classes == classes
    assert [classes[label] for label in found.labels] == names
    assert [classes[label] for label in found.batch(np.arange(3)).target.ids[:, 0]] == names[:3]


@pytest.mark.parametrize("classes", [("cat", "dog"), ("cat", "dog", "owl")])
def test_other_classes_are_refused(store: Store, classes: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match=r"a\.tok has other classes"):
        TokenSource(store, classes)


class Counting(Store):
    """A store that counts the records it decodes."""

    decoded = 0

    def batch(self, index: np.ndarray, view: int | np.ndarray = 0) -> np.ndarray:
        self.decoded += len(index)
        return super().batch(index, view)


@pytest.fixture
def counting(store: Store) -> Counting:
    return Counting(str(store.path))


def test_a_small_store_is_decoded_once(counting: Counting) -> None:
    source = TokenSource(counting)
    for wanted in ([3, 1, 3, 3], [1, 0], [6, 5, 4, 3, 2, 1, 0], [2, 2]):
        batch = source.batch(np.array(wanted))
        assert np.array_equal(batch.x.numpy(), IDS[wanted])
        assert batch.x.dtype == torch.int32
    assert counting.decoded == len(IDS)


def test_batches_of_a_small_store_are_their_own(store: Store) -> None:
    source = TokenSource(store)
    source.batch(np.arange(7)).x.zero_()
    assert np.array_equal(source.batch(np.arange(7)).x.numpy(), IDS)


@pytest.mark.parametrize("wanted", [[7], [0, -1]])
def test_samples_that_are_not_there_are_refused(store: Store, wanted: list[int]) -> None:
    with pytest.raises(IndexError, match="of 7"):
        TokenSource(store).batch(np.array(wanted))


def test_a_large_store_is_decoded_each_time(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilework.data.tokens.KEEP_BYTES", 2 * IDS.size - 1)
    source = TokenSource(counting)
    for _ in range(3):
        assert np.array_equal(source.batch(np.arange(7)).x.numpy(), IDS)
    assert counting.decoded == 3 * len(IDS)


def test_a_damaged_record_is_refused_each_time(store: Store) -> None:
    shard = next((Path(str(store.path)) / "shards").iterdir())
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    source = TokenSource(Store(str(store.path)))
    for _ in range(2):
        with pytest.raises(DamageError):
            source.batch(np.arange(7))
