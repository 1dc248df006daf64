"""Arrays of codes to stores and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilework.core.errors import InputError
from tilework.data.npy_files import read_npy, write_npy
from tilework.store import Store


def test_there_and_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids, book = rng.integers(0, 300, (7, 4, 5)).astype(np.int32), rng.normal(size=(300, 6)).astype(np.float32)
    np.save(tmp_path / "codes.npy", ids)
    np.save(tmp_path / "book.npy", book)
    np.save(tmp_path / "labels.npy", np.arange(7) % 2)
    read_npy(tmp_path / "codes.npy", tmp_path / "a.tok", tmp_path / "book.npy", tmp_path / "labels.npy")
    write_npy(Store(tmp_path / "a.tok"), tmp_path / "out")
    assert np.array_equal(np.load(tmp_path / "out/codes.npy"), ids)
    assert np.array_equal(np.load(tmp_path / "out/codebook.npy"), book)
    assert np.load(tmp_path / "out/labels.npy").tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert (tmp_path / "out/keys.txt").read_text().split() == list("0123456")


def test_synonyms_come_along(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "codes.npy", np.arange(40).reshape(2, 4, 5).astype(np.int32))
    np.save(tmp_path / "codebook.npy", rng.normal(size=(40, 6)).astype(np.float32))
    given = (np.arange(40)[:, None] + np.array([7, 3, 9])) % 40
    np.save(tmp_path / "synonyms.npy", given.astype(np.int32))
    read_npy(tmp_path / "codes.npy", tmp_path / "a.tok", tmp_path / "codebook.npy")
    assert np.array_equal(Store(tmp_path / "a.tok").codebook.nearest(3), given)
    write_npy(Store(tmp_path / "a.tok"), tmp_path / "out")
    read_npy(tmp_path / "out/codes.npy", tmp_path / "b.tok", tmp_path / "out/codebook.npy")
    assert np.array_equal(Store(tmp_path / "b.tok").codebook.nearest(3), given)
    np.save(tmp_path / "synonyms.npy", given[:30].astype(np.int32))
    with pytest.raises(InputError, match=r"synonyms\.npy does not fit a codebook of 40 codes"):
        read_npy(tmp_path / "codes.npy", tmp_path / "c.tok", tmp_path / "codebook.npy")
    (tmp_path / "synonyms.npy").unlink()
    read_npy(tmp_path / "codes.npy", tmp_path / "d.tok", tmp_path / "codebook.npy")
    write_npy(Store(tmp_path / "d.tok"), tmp_path / "plain")
    assert not (tmp_path / "plain/synonyms.npy").exists()


def test_sequences_without_labels_or_vectors(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 50, (5, 8))
    np.save(tmp_path / "codes.npy", ids)
    read_npy(tmp_path / "codes.npy", tmp_path / "a.tok")
    store = Store(tmp_path / "a.tok")
    assert store.grid == (8,)
    assert np.array_equal(store.batch(np.arange(5)), ids)
    assert store.codebook.vectors.shape == (ids.max() + 1, 0)
    assert store.classes == ("unlabelled",)
    read_npy(tmp_path / "codes.npy", tmp_path / "b.tok", grid=(2, 4))
    assert Store(tmp_path / "b.tok").grid == (2, 4)


@pytest.mark.parametrize("wrong", [np.zeros((2, 3)), np.zeros(3, int), np.zeros((0, 3), int), np.array([object()])])
def test_other_arrays_are_refused(tmp_path: Path, wrong: np.ndarray) -> None:
    np.save(tmp_path / "codes.npy", wrong, allow_pickle=True)
    with pytest.raises(InputError, match=r"codes\.npy"):
        read_npy(tmp_path / "codes.npy", tmp_path / "a.tok")
    assert not (tmp_path / "a.tok").exists()


def test_other_lengths_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "codes.npy", np.zeros((4, 6), int))
    np.save(tmp_path / "labels.npy", np.zeros(3, int))
    with pytest.raises(InputError, match="4 labels are needed"):
        read_npy(tmp_path / "codes.npy", tmp_path / "a.tok", labels=tmp_path / "labels.npy")
    with pytest.raises(InputError, match="6 codes for a grid of 2x2"):
        read_npy(tmp_path / "codes.npy", tmp_path / "a.tok", grid=(2, 2))
    with pytest.raises(InputError, match="cannot be read"):
        read_npy(tmp_path / "nowhere.npy", tmp_path / "a.tok")
