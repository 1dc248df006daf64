"""Pictures of samples: the photograph where it is at hand, and never a file outside the folder that was given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tilework.core.errors import InputError
from tilework.runs.pictures import beside, check_images, stored_samples
from tilework.store import Store, StoreWriter

KEYS = ["a/one.png", "a/gone.png", "../secret.png", "/etc/secret.png", "a/words.txt", "a/broken.png"]


@pytest.fixture
def made(tmp_path: Path) -> tuple[Store, Path]:
    """A store whose keys point to a good file, a missing one, ones outside, one that is no image, a broken one."""
    images = tmp_path / "images"
    (images / "a").mkdir(parents=True)
    Image.new("RGB", (40, 60), (200, 10, 10)).save(images / "a/one.png")
    Image.new("RGB", (40, 60)).save(tmp_path / "secret.png")
    (images / "a/words.txt").write_text("x")
    (images / "a/broken.png").write_bytes(b"no image")
    with StoreWriter(tmp_path / "x.tok", np.eye(4, 3, dtype=np.float32), ["a"]) as writer:
        writer.add(np.zeros((len(KEYS), 2, 2), np.int64), np.zeros(len(KEYS), np.int64), KEYS)
    return Store(tmp_path / "x.tok"), images


def test_only_photographs_inside_the_folder_are_shown(made: tuple[Store, Path]) -> None:
    store, images = made
    found = stored_samples(store, np.arange(len(KEYS)), None, images)
    assert [one.key for one in found] == KEYS
    assert [one.photograph is not None for one in found] == [True, False, False, False, False, False]
    assert found[0].photograph is not None
    assert (found[0].photograph == (200, 10, 10)).all()
    assert [len(one.pictures) for one in found] == [2, 1, 1, 1, 1, 1]
    assert all(one.photograph is None for one in stored_samples(store, np.arange(2)))


def test_a_folder_without_any_of_them_is_refused(made: tuple[Store, Path], tmp_path: Path) -> None:
    store, images = made
    check_images(store, images)
    for other in (tmp_path / "nowhere", tmp_path / "x.tok", images / "a"):
        with pytest.raises(InputError, match="has no photograph of"):
            check_images(store, other)


def test_pictures_beside_each_other_are_equally_tall() -> None:
    pair = beside([np.zeros((8, 8, 3), np.uint8), np.full((32, 64, 3), 255, np.uint8)])
    assert pair.shape == (32, 96, 3)
    assert (pair[:, :32] == 0).all()
    assert (pair[:, 32:] == 255).all()
