"""Files that are whole or absent, whatever fails on the way."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilework.core.errors import DamageError, OutputError
from tilework.core.files import crc32c, new_directory, read_plain, sha256, write, write_json
from tilework.core.sealed import read_json


def slow_crc32c(data: bytes) -> int:
    """Bit by bit, reflected polynomial 0x82F63B78."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def no_space(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.fixture(params=["fsync", "replace"])
def full_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "fsync":
        monkeypatch.setattr(os, "fsync", no_space)
    else:
        monkeypatch.setattr(Path, "replace", no_space)


def names(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


def test_crc32c_has_the_known_value() -> None:
    assert crc32c(b"123456789") == 0xE3069283


@given(st.binary(max_size=64))
def test_crc32c_is_the_slow_formula(data: bytes) -> None:
    assert crc32c(data) == crc32c(memoryview(data)) == slow_crc32c(data)


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_sha256_is_that_of_hashlib(tmp_path: Path, size: int) -> None:
    data = bytes(i * 37 & 255 for i in range(251)) * (size // 251 + 1)
    (tmp_path / "file").write_bytes(data[:size])
    assert sha256(tmp_path / "file") == hashlib.sha256(data[:size]).hexdigest()


def test_write_makes_folders_and_only_the_file(tmp_path: Path) -> None:
    write(tmp_path / "a/b/file", b"data")
    assert (tmp_path / "a/b/file").read_bytes() == b"data"
    assert names(tmp_path) == ["a", "a/b", "a/b/file"]


def test_write_replaces_a_file(tmp_path: Path) -> None:
    write(tmp_path / "file", b"a longer old text")
    write(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert names(tmp_path) == ["file"]


@pytest.mark.usefixtures("full_disk")
def test_failed_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"cannot write .*file.*No space left"):
        write(tmp_path / "file", b"data")
    assert names(tmp_path) == []


@pytest.mark.usefixtures("full_disk")
def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(OutputError):
        write(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "file", b"data")
    assert names(tmp_path) == []


def test_write_below_a_file_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="cannot write"):
        write(tmp_path / "file/inner", b"data")


def test_write_of_a_name_too_long_is_an_output_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write"):
        write(tmp_path / ("x" * 300), b"data")


def test_write_over_a_folder_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="cannot write"):
        write(tmp_path / "folder", b"data")
    assert names(tmp_path) == ["folder"]


def test_write_flushes_to_disk_before_the_name_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[bool] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (there.append((tmp_path / "file").exists()), real(handle)))
    write(tmp_path / "file", b"data")
    assert there == [False, True]  # the file before its rename, the folder after it


def test_write_json_reads_back(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, True], "b": {"c": "grüße"}}
    write_json(tmp_path / "file.json", value)
    text = (tmp_path / "file.json").read_text("utf-8")
    assert json.loads(text) == value
    assert text.endswith("}\n")


def test_new_directory_appears_at_the_end(tmp_path: Path) -> None:
    with new_directory(tmp_path / "out") as aside:
        (aside / "inner").mkdir()
        (aside / "inner/file").write_bytes(b"data")
        assert not (tmp_path / "out").exists()
    assert names(tmp_path) == ["out", "out/inner", "out/inner/file"]


def test_new_directory_makes_parents(tmp_path: Path) -> None:
    with new_directory(tmp_path / "a/b/out") as aside:
        (aside / "file").write_bytes(b"data")
    assert (tmp_path / "a/b/out/file").read_bytes() == b"data"


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_new_directory_vanishes_when_the_block_fails(tmp_path: Path, kind: type[BaseException]) -> None:
    def fill() -> None:
        with new_directory(tmp_path / "out") as aside:
            (aside / "file").write_bytes(b"data")
            raise kind("stop")

    with pytest.raises(kind, match="stop"):
        fill()
    assert names(tmp_path) == []


def test_new_directory_vanishes_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", no_space)
    with (
        pytest.raises(OutputError, match=r"cannot write .*out.*No space left"),
        new_directory(tmp_path / "out") as aside,
    ):
        (aside / "file").write_bytes(b"data")
    assert names(tmp_path) == []


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_new_directory_refuses_a_taken_path(tmp_path: Path, kind: str) -> None:
    (tmp_path / "out").mkdir() if kind == "folder" else (tmp_path / "out").write_bytes(b"old")
    with pytest.raises(OutputError, match=r"out exists"), new_directory(tmp_path / "out"):
        pytest.fail("the block ran")
    assert names(tmp_path) == ["out"]


def test_new_directory_refuses_a_path_taken_meanwhile(tmp_path: Path) -> None:
    def fill() -> None:
        with new_directory(tmp_path / "out") as aside:
            (aside / "file").write_bytes(b"mine")
            write(tmp_path / "out/file", b"theirs")  # another process was quicker

    with pytest.raises(OutputError, match="out"):
        fill()
    assert (tmp_path / "out/file").read_bytes() == b"theirs"
    assert names(tmp_path) == ["out", "out/file"]


def test_new_directory_replaces_when_told(tmp_path: Path) -> None:
    write(tmp_path / "out/old", b"old")
    with new_directory(tmp_path / "out", replace=True) as aside:
        (aside / "new").write_bytes(b"new")
        assert (tmp_path / "out/old").exists()
    assert names(tmp_path) == ["out", "out/new"]


def test_failed_block_keeps_the_directory_to_replace(tmp_path: Path) -> None:
    def fill() -> None:
        with new_directory(tmp_path / "out", replace=True):
            raise RuntimeError("stop")

    write(tmp_path / "out/old", b"old")
    with pytest.raises(RuntimeError, match="stop"):
        fill()
    assert names(tmp_path) == ["out", "out/old"]


def test_failed_rename_keeps_the_directory_to_replace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        """The new directory cannot take the name; the old one may come and go."""
        if (self / "new").exists():
            no_space()
        return real(self, target)

    write(tmp_path / "out/old", b"old")
    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OutputError), new_directory(tmp_path / "out", replace=True) as aside:
        (aside / "new").write_bytes(b"new")
    assert names(tmp_path) == ["out", "out/old"]


def test_new_directory_below_a_file_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="cannot write"), new_directory(tmp_path / "file/out"):
        pytest.fail("the block ran")


def test_pipes_and_devices_are_neither_waited_for_nor_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(OSError, match="not a regular file"):
            read_plain(tmp_path / name)
        with pytest.raises(OSError, match="not a regular file"):
            sha256(tmp_path / name)
        with pytest.raises(DamageError, match=name):
            read_json(tmp_path / name)
    (tmp_path / "file").write_bytes(b"four")
    assert read_plain(tmp_path / "file", 4) == b"four"
    with pytest.raises(OSError, match="larger than 3 bytes"):
        read_plain(tmp_path / "file", 3)
