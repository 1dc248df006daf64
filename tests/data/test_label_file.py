"""Label files as people have them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tilework.core.errors import InputError
from tilework.data import ImageFolder
from tilework.data.label_file import write_label_file
from tilework.data.split import list_images

NAMES = ("a.png", "b.jpg", "deep/c.png")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.csv", "path,label\na.png,cat\nb.jpg,dog\ndeep/c.png,cat\n"),
        ("x.csv", "Label,filename,note\ncat,a.png,1\ndog,b.jpg,2\ncat,deep/c.png,3\n"),
        ("x.csv", "a.png,cat\nb.jpg,dog\ndeep/c.png,cat\n"),
        ("x.csv", "path;label\na.png;cat\nb.jpg;dog\ndeep/c.png;cat\n"),
        ("x.csv", "\ufeffid,label\na,cat\nb,dog\ndeep/c,cat\n"),
        ("x.tsv", "a.png\tcat\nb.jpg\tdog\ndeep/c.png\tcat\n"),
        ("x.txt", "# comment\na.png cat\n\nb.jpg dog\ndeep/c.png   cat\n"),
    ],
)
def test_every_layout(root: Path, name: str, text: str) -> None:
    (root / name).write_text(text, "utf-8")
    folder = ImageFolder.open(root / name)
    assert folder.keys == NAMES
    assert folder.classes == ("cat", "dog")
    assert folder.labels.tolist() == [0, 1, 0]
    assert ImageFolder.open(root / name, classes=("dog", "eel", "cat")).labels.tolist() == [2, 0, 2]


def test_numbers(root: Path) -> None:
    (root / "x.txt").write_text("a.png 2\nb.jpg 10\ndeep/c.png 2\n")
    folder = ImageFolder.open(root / "x.txt")
    assert (folder.classes, folder.labels.tolist()) == (("2", "10"), [0, 1, 0])
    (root / "x.txt").write_text("a.png 2\nb.jpg 0\ndeep/c.png 2\n")
    (root / "classes.txt").write_text("ant\nbee\ncat\n")
    folder = ImageFolder.open(root / "x.txt")
    assert (folder.classes, folder.labels.tolist()) == (("ant", "bee", "cat"), [2, 0, 2])


def test_numbers_too_long_to_be_counted_are_names(root: Path) -> None:
    (root / "x.csv").write_text(f"a.png,{'9' * 5000}\nb.jpg,10\ndeep/c.png,2\n")
    assert ImageFolder.open(root / "x.csv").classes == ("10", "2", "9" * 5000)
    with pytest.raises(InputError, match=r"line 1 of .* has the label '999"):
        ImageFolder.open(root / "x.csv", classes=("cat", "dog"))
    (root / "x.csv").write_text(f"a.png,{'9' * 40}\nb.jpg,10\ndeep/c.png,2\n")
    assert ImageFolder.open(root / "x.csv").classes == ("2", "10", "9" * 40)


def test_a_flat_folder_with_its_label_file(root: Path) -> None:
    (root / "labels.csv").write_text("a.png,cat\nb.jpg,dog\n")
    folder = ImageFolder.open(root)
    assert folder.classes == ("cat", "dog")
    assert "labels are those of labels.csv" in folder.remarks[0]


def test_missing_images_are_left_out_and_said(root: Path) -> None:
    (root / "x.csv").write_text("a.png,cat\ngone.png,dog\n")
    folder = ImageFolder.open(root / "x.csv")
    assert folder.keys == ("a.png",)
    assert "1 of 2 images do not exist and are left out (first: gone.png)" in folder.remarks[0]


def test_what_split_writes_can_be_read_from_elsewhere(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "elsewhere/train.csv"
    file.parent.mkdir()
    file.write_text(write_label_file(root, file, NAMES, ["cat, big", "dog", "cat, big"]))
    folder = ImageFolder.open(file)
    assert folder.keys == NAMES
    assert folder.classes == ("cat, big", "dog")


def test_names_with_signs_of_the_format_are_written_and_read(tmp_path: Path) -> None:
    """Class folders that begin with the sign of comments, or have blanks around their names."""
    names = ("#cat/a.png", " dog /b.png", "cow, brown/c.png", 'an "ox"/d.png')
    for name in names:
        (tmp_path / "in" / name).parent.mkdir(parents=True)
        (tmp_path / "in" / name).write_bytes(b"x")
    folder = ImageFolder.open(tmp_path / "in")
    list_images(folder, tmp_path / "x.csv")
    found = ImageFolder.open(tmp_path / "x.csv", folder.classes)
    assert (found.keys, found.labels.tolist()) == (folder.keys, folder.labels.tolist())
    assert set(found.keys) == set(names)


def test_a_header_in_other_words_is_no_class(root: Path) -> None:
    (root / "x.csv").write_text("Datei;Klasse\na.png;cat\nb.jpg;dog\n")
    folder = ImageFolder.open(root / "x.csv")
    assert (folder.keys, folder.classes) == (("a.png", "b.jpg"), ("cat", "dog"))
    assert folder.remarks == (f"{root / 'x.csv'}: its first line ('Datei', 'Klasse') is taken for a header",)


def test_blanks_around_cells_and_quoted_cells(root: Path) -> None:
    (root / "x.csv").write_text('path, label\na.png , cat\n"b.jpg", "dog"\n')
    folder = ImageFolder.open(root / "x.csv")
    assert (folder.keys, folder.classes) == (("a.png", "b.jpg"), ("cat", "dog"))


def test_names_that_are_not_utf_8_are_refused(tmp_path: Path) -> None:
    for name in (b"m\xfcll", b"good"):
        folder = os.path.join(os.fsencode(tmp_path), b"in", name)
        os.makedirs(folder)
        with open(os.path.join(folder, b"a.png"), "wb"):
            pass
    with pytest.raises(InputError, match="a name is not UTF-8"):
        ImageFolder.open(tmp_path / "in")


@pytest.mark.parametrize("sign", ["\n", "\r", "\t", "\x1b", "\x85", "\u2028"])
@pytest.mark.parametrize("place", ["class", "file", "root"])
def test_control_characters_in_names_are_refused(tmp_path: Path, sign: str, place: str) -> None:
    """A label file has a line for each image, and a terminal obeys what it is shown."""
    root, label, name = (f"a{sign}b" if place == part else "ab" for part in ("root", "class", "file"))
    for folder in (label, "other"):
        (tmp_path / root / folder).mkdir(parents=True)
        (tmp_path / root / folder / f"{name}.png").write_bytes(b"x")
    with pytest.raises(InputError, match=r"a name has a control character: .*: rename it") as refused:
        ImageFolder.open(tmp_path / root)
    assert str(refused.value).isprintable()
    with pytest.raises(InputError, match="control character"):
        ImageFolder.loose([tmp_path / root / label / f"{name}.png"])


def test_control_characters_of_what_is_no_image_do_not_matter(tmp_path: Path) -> None:
    for folder in ("a", "b"):  # macOS keeps the picture of a folder in a file of this name
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "Icon\r").write_bytes(b"")
        (tmp_path / folder / "10\u202fpm \u3000 👩\u200d🌾.png").write_bytes(b"x")  # odd spaces and joiners are fine
    folder = ImageFolder.open(tmp_path)
    assert (len(folder), folder.skipped) == (2, {"without ending": 2})
    list_images(folder, tmp_path / "x.csv")
    assert ImageFolder.open(tmp_path / "x.csv").keys == folder.keys


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no rows"),
        ("path,label\n", "has no rows"),
        ("a.png,cat,3\n", "name the columns"),
        ("a.png,\n", "line 1 of .* has the label ''"),
        ("a.png,cat\na.png,cat\n", "line 2 of .* lists 'a.png' a second time"),
        ("/etc/a.png,cat\n", "has the path '/etc/a.png'"),
        ("../a.png,cat\n", "below the folder"),
        (f"{'9' * 300}.png,cat\n", "below the folder"),
        ("a.png,cat\n.,cat\n", "line 2 of .* has the path '.'"),
        (f"{'a' * 255},cat\n", "names no image"),
        (f"# root: {'a' * 5000}\na.png,cat\n", "which is no folder"),
        ("gone.png,cat\n", "names no image"),
        ("# root: nowhere\na.png,cat\n", "which is no folder"),
        ("\x00", "has no rows|name the columns"),
        ('path,label\n"a\n.png",cat\n', "line 2 of .* has a quote that is not closed"),
        ("a.png,cat\nb\x85.jpg,dog\n", "line 2 of .* has a control character"),
        ("a.png,cat\nb.jpg,d\x1bog\n", "line 2 of .* has a control character"),
    ],
)
def test_refused(root: Path, text: str, words: str) -> None:
    (root / "x.csv").write_text(text)
    with pytest.raises(InputError, match=words):
        ImageFolder.open(root / "x.csv")


def test_binary_and_unknown_labels_are_refused(root: Path) -> None:
    (root / "x.csv").write_bytes(bytes(range(256)))
    with pytest.raises(InputError, match="is not in UTF-8"):
        ImageFolder.open(root / "x.csv")
    (root / "x.csv").write_text("a.png,owl\n")
    with pytest.raises(InputError, match="has the label 'owl': training knows 2: cat, dog"):
        ImageFolder.open(root / "x.csv", classes=("cat", "dog"))
