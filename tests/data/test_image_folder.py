"""Folders of images: classes, order, levels, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from small_images import put
from tilework.core.errors import InputError
from tilework.data import ImageFolder


def test_folder_lists_sorted_with_labels_and_keys(tmp_path: Path) -> None:
    for name in ("b/2.png", "b/1.JPG", "a/deep/3.webp", "a/9.jpeg"):
        put(tmp_path / name, b"x")
    folder = ImageFolder.open(tmp_path)
    assert folder.keys == ("a/9.jpeg", "a/deep/3.webp", "b/1.JPG", "b/2.png")
    assert folder.labels.tolist() == [0, 0, 1, 1]
    assert folder.classes == ("a", "b")
    assert folder.bytes == 4


def test_other_suffixes_are_counted_and_hidden_files_left_out(tmp_path: Path) -> None:
    for name in ("a/1.png", "a/notes.txt", "b/2.png", "b/film.mov", "b/none", "b/.hidden.png", ".cache/3.png"):
        put(tmp_path / name, b"x")
    folder = ImageFolder.open(tmp_path)
    assert folder.keys == ("a/1.png", "b/2.png")
    assert folder.skipped == {".txt": 1, ".mov": 1, "without ending": 1}
    assert "3 files are not images" in folder.notes[-1]
    assert folder.classes == ("a", "b")


def test_given_classes_number_the_labels(tmp_path: Path) -> None:
    for name in ("cat/1.png", "dog/1.png"):
        put(tmp_path / name, b"x")
    folder = ImageFolder.open(tmp_path, classes=("dog", "eel", "cat"))
    assert folder.classes == ("dog", "eel", "cat")
    assert dict(zip(folder.keys, folder.labels.tolist(), strict=True)) == {"cat/1.png": 2, "dog/1.png": 0}


def test_take_keeps_paths_and_labels_together(tmp_path: Path) -> None:
    for name in ("a/1.png", "a/2.png", "b/3.png"):
        put(tmp_path / name, b"x")
    taken = ImageFolder.open(tmp_path).take(np.array([2, 0]))
    assert taken.keys == ("b/3.png", "a/1.png")
    assert taken.labels.tolist() == [1, 0]
    assert len(taken) == 2


def test_unknown_class_is_refused_by_name(tmp_path: Path) -> None:
    put(tmp_path / "cat/1.png", b"x")
    put(tmp_path / "owl/1.png", b"x")
    with pytest.raises(InputError, match="'owl'"):
        ImageFolder.open(tmp_path, classes=("cat", "dog"))


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no folder .*nowhere"):
        ImageFolder.open(tmp_path / "nowhere")


def test_file_instead_of_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a file"):
        ImageFolder.open(put(tmp_path / "a.mov", b"x"))


def test_one_photograph_has_no_label(tmp_path: Path) -> None:
    folder = ImageFolder.open(put(tmp_path / "a.png"))
    assert (folder.keys, folder.classes) == (("a.png",), ("unlabelled",))
    with pytest.raises(InputError, match="has no labels"):
        ImageFolder.open(tmp_path / "a.png", classes=("cat", "dog"))


def test_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no class folders"):
        ImageFolder.open(tmp_path)


def test_images_without_class_folders_have_no_labels(tmp_path: Path) -> None:
    put(tmp_path / "a.png")
    folder = ImageFolder.open(tmp_path)
    assert folder.classes == ("unlabelled",)
    assert "1 images without labels" in folder.remarks[0]
    with pytest.raises(InputError, match="has no labels"):
        ImageFolder.open(tmp_path, classes=("cat", "dog"))


def nested(root: Path) -> Path:
    for name in ("fruit/apple/1.png", "fruit/pear/red/2.png", "fruit/pear/green/3.png", "milk/4.png", "empty/x.txt"):
        put(root / name, b"x")
    return root


def test_nested_class_folders_are_said_aloud(tmp_path: Path) -> None:
    folder = ImageFolder.open(nested(tmp_path))
    assert folder.classes == ("fruit/apple", "fruit/pear/green", "fruit/pear/red", "milk")
    assert "classes are the 4 folders that hold images, not the 2 folders of the first level" in folder.remarks[0]
    assert "1 class folder without images is no class (empty)" in folder.remarks[1]
    top = ImageFolder.open(tmp_path, level="top")
    assert top.classes == ("fruit", "milk"), "an empty folder would be a class that nothing was seen of"
    assert "classes are the 2 folders of the first level" in top.remarks[0]


@pytest.mark.parametrize("classes", [("fruit", "milk"), ("fruit/apple", "fruit/pear/green", "fruit/pear/red", "milk")])
def test_known_classes_choose_the_level(tmp_path: Path, classes: tuple[str, ...]) -> None:
    folder = ImageFolder.open(nested(tmp_path), classes=classes)
    assert folder.classes == classes
    assert len(set(folder.labels.tolist())) == len(classes)


def test_a_folder_of_images_in_each_class_is_no_doubt(tmp_path: Path) -> None:
    for name in ("n01/images/1.png", "n02/images/2.png"):
        put(tmp_path / name, b"x")
    folder = ImageFolder.open(tmp_path)
    assert (folder.classes, folder.remarks) == (("n01", "n02"), ())


def test_class_folders_without_images_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "a/readme.txt", b"x")
    with pytest.raises(InputError, match="holds no images"):
        ImageFolder.open(tmp_path)
