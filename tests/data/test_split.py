"""Parts of a folder: copies of an image lie in one of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from small_data import write_images
from tilework.data import ImageFolder
from tilework.data.overlap import PART, same_files
from tilework.data.split import split_numbers


def test_copies_of_an_image_are_in_one_part(tmp_path: Path) -> None:
    photos = write_images(tmp_path / "photos", classes=2, count=10)
    for folder in sorted(photos.iterdir()):
        for file in sorted(folder.iterdir()):
            shutil.copy(file, file.with_name(f"copy of {file.name}"))
    folder = ImageFolder.open(photos)
    for seed in range(5):
        parts = [
            {folder.key(i).replace("copy of ", "") for i in part.tolist()} for part in split_numbers(folder, 0.6, seed)
        ]
        assert not parts[0] & parts[1]
        assert parts[1], "some are left to validate on"


def test_without_copies_a_split_is_by_class(tmp_path: Path) -> None:
    folder = ImageFolder.open(write_images(tmp_path / "photos", classes=2, count=10))
    first, rest = split_numbers(folder, 0.8)
    assert [np.bincount(folder.labels[part]).tolist() for part in (first, rest)] == [[8, 8], [2, 2]]


@pytest.mark.parametrize("at", [0, 150_000, 299_999])
def test_files_of_one_size_that_differ_anywhere_looked_at(tmp_path: Path, at: int) -> None:
    """Images that are not compressed are all of one size, and may begin alike."""
    data = bytearray(np.random.default_rng(0).bytes(300_000))
    paths = [tmp_path / name for name in "abcd"]
    for number, path in enumerate(paths):
        data[at] = (1, 2, 1, 3)[number]
        path.write_bytes(data)
    assert len(data) > 4 * PART
    assert same_files(paths).tolist() == [0, 1, 0, 3]


def test_files_of_other_sizes_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / name for name in "abc"]
    for number, path in enumerate(paths):
        path.write_bytes(bytes(number))
    monkeypatch.setattr("tilework.data.overlap._hash", lambda path: pytest.fail("it was read"))
    assert same_files(paths).tolist() == [0, 1, 2]
