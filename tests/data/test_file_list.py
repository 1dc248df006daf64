"""Paths of many files in one piece. Oracle: a tuple of Paths."""

from __future__ import annotations

import os
import pickle
import tracemalloc
from pathlib import Path

import pytest

from tilework.data.file_list import FileList, lies_below

ROOT = Path("photos/train")
PATHS = tuple(ROOT / name for name in ("a/1.jpg", "a/ü 2.JPG", "b/c/3.png", os.fsdecode(b"b/\xff.gif")))


def test_it_is_the_tuple() -> None:
    files = FileList.of(ROOT, PATHS)
    assert tuple(files) == PATHS
    assert (len(files), files[-1], files[1], PATHS[2] in files) == (4, PATHS[-1], PATHS[1], True)
    assert tuple(files[1:3]) == PATHS[1:3]
    assert tuple(files.take([3, 0, 0])) == (PATHS[3], PATHS[0], PATHS[0])
    assert files.name(2) == "b/c/3.png"
    assert tuple(pickle.loads(pickle.dumps(files))) == PATHS
    assert not FileList.of(ROOT, ())
    for index in (4, -5):
        with pytest.raises(IndexError):
            files[index]


def test_files_elsewhere_keep_their_paths(tmp_path: Path) -> None:
    files = FileList.of(ROOT, (tmp_path / "x.jpg", ROOT / "../y.jpg"))
    assert tuple(files) == (tmp_path / "x.jpg", ROOT / "../y.jpg")
    assert files.name(1) == "../y.jpg"
    assert tuple(FileList.of(Path("."), [Path("a/x.jpg")])) == (Path("a/x.jpg"),)


def test_a_file_takes_its_name_and_eight_bytes() -> None:
    count, name = 20_000, "n00000000/n00000000_000000.JPEG"
    tracemalloc.start()
    files = FileList(ROOT, (f"n00000000/n00000000_{i:06d}.JPEG" for i in range(count)))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(files) == count
    assert held < 1.2 * (len(name) + 8) * count  # a little is kept for files to come


@pytest.mark.parametrize(
    "name", ["a.png", "a/b c.png", "é/ü.jpg", "a..b.png", ".../x.png", "ü" * 127, "a//b.png", "./a.png"]
)
def test_names_of_files_below_a_folder(name: str) -> None:
    assert lies_below(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "./",
        ".//.",
        "/etc/x.png",
        "../x.png",
        "a/../../x.png",
        "..",
        "a\0b",
        "\ud800",
        "9" * 256,
        "ü" * 128,
        "ü/" * 700,
    ],
)
def test_names_that_no_file_below_a_folder_has(name: str) -> None:
    assert not lies_below(name)


def test_the_system_takes_names_as_long_as_that(tmp_path: Path) -> None:
    assert not (tmp_path / ("ü" * 127) / ("b" * 255)).exists()  # and raises nothing
