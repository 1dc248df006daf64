"""Arrays of codes to stores and back."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from tilework.core.errors import InputError
from tilework.data.npy_files import load_npy, parse_npy, read_npy, write_npy
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


def npy(header: str, data: bytes = bytes(64)) -> bytes:
    """A .npy file of any header."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


def array(descr: str = "'<i8'", shape: str = "(2, 4)", more: str = "") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, {more}}}\n"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "header",
    [
        array("()"),
        array("('<i8',)"),
        array("'i4,,i4'"),
        array("'V0'"),
        array("'|O'"),
        array(shape="(True, 4)"),
        array(shape="(-2, -4)"),
        array(shape=f"({10**23}, 4)"),
        array(shape=f"({1 << 62}, 4)"),
        array(shape=f"({1 << 62}, {1 << 62}, 0)"),
        array(shape=f"(0, {10**23})"),
        array(shape="(2, 5)"),
        array(shape="(" + "1, " * 65 + ")"),
        array(more="5: 1"),
        "(" * 5000,
        "-" * 9000 + "1",
        "[" * 3000,
        "[1, 2]",
        " " * 20_000,
    ],
    ids=lambda header: header[:60],
)
def test_headers_that_are_wrong_are_refused_in_one_line(tmp_path: Path, header: str) -> None:
    (tmp_path / "codes.npy").write_bytes(npy(header))
    with pytest.raises(InputError, match=r"codes\.npy cannot be read as a numpy array: .") as caught:
        load_npy(tmp_path / "codes.npy")
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"\w"):
        parse_npy(npy(header))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("version", [1, 2, 3])
def test_headers_of_all_versions_are_read(tmp_path: Path, version: int) -> None:
    values = np.arange(8).reshape(2, 4)
    whole = npy(array(shape="(2L, 4L)"), values.tobytes())  # as Python 2 wrote it
    if version > 1:
        whole = whole[:6] + bytes([version]) + whole[7:10] + bytes(2) + whole[10:]
    (tmp_path / "codes.npy").write_bytes(whole)
    assert np.array_equal(load_npy(tmp_path / "codes.npy"), values)
    assert np.array_equal(parse_npy(whole), values)
    turned = npy(array().replace("False", "True"), values.tobytes("F"))
    (tmp_path / "codes.npy").write_bytes(turned + b"more")
    assert np.array_equal(load_npy(tmp_path / "codes.npy"), values)
    assert np.array_equal(parse_npy(turned), values)


@pytest.mark.parametrize("data", [b"PK\x03\x04garbage", b"PK\x05\x06" + bytes(18)])
def test_archives_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "codes.npy").write_bytes(data)
    with pytest.raises(InputError, match=r"codes\.npy is an archive.*: give a \.npy file"):
        load_npy(tmp_path / "codes.npy")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "codes.npy")
    with pytest.raises(InputError, match="not a regular file"):
        read_npy(tmp_path / "codes.npy", tmp_path / "a.tok")


@pytest.mark.parametrize(
    ("codes", "match"),
    [
        (np.ones((2, 4), "m8[s]"), r"timedelta64\[s\] of shape \(2, 4\)"),
        (np.ones((2, 4), "m8"), r"timedelta64 of shape \(2, 4\)"),
        (np.full((2, 4), 1 << 63, np.uint64), "a code of 9223372036854775808 .*codes from 0 to 1048575"),
        (np.full((2, 4), -5), "a code of -5 .*codes from 0 to 1048575"),
    ],
)
def test_codes_of_other_kinds_are_refused(tmp_path: Path, codes: np.ndarray, match: str) -> None:
    np.save(tmp_path / "codes.npy", codes)
    with pytest.raises(InputError, match=match):
        read_npy(tmp_path / "codes.npy", tmp_path / "a.tok")
    assert [path.name for path in tmp_path.iterdir()] == ["codes.npy"]


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        (np.array([0, 1], "m8[s]"), r"timedelta64\[s\] of shape \(2,\): 2 labels are needed"),
        (np.array([0, 30_000_000]), r"labels 0\.\.30000000 in .*: numbers from 0 to 1048575 are needed"),
        (np.array([0, 1 << 63], np.uint64), r"labels 0\.\.9223372036854775808 in .*: numbers from 0 to 1048575"),
    ],
)
def test_labels_that_number_no_classes_are_refused(tmp_path: Path, labels: np.ndarray, match: str) -> None:
    np.save(tmp_path / "codes.npy", np.arange(8).reshape(2, 4))
    np.save(tmp_path / "labels.npy", labels)
    with pytest.raises(InputError, match=match):
        read_npy(tmp_path / "codes.npy", tmp_path / "a.tok", labels=tmp_path / "labels.npy")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "table",
    [
        np.float32(3),
        np.zeros(8),
        np.full((8, 2), "x"),
        np.ones((8, 2), complex),
        np.ones((8, 2), [("a", "<f4")]),
        np.ones((8, 2), "M8[s]"),
    ],
    ids=lambda table: str(table.dtype),
)
def test_tables_that_are_no_codebook_are_refused(tmp_path: Path, table: np.ndarray) -> None:
    np.save(tmp_path / "codes.npy", np.arange(8).reshape(2, 4))
    np.save(tmp_path / "book.npy", table)
    with pytest.raises(InputError, match=r"book\.npy holds .* of shape .*: \(K, C\) numbers are needed"):
        read_npy(tmp_path / "codes.npy", tmp_path / "a.tok", tmp_path / "book.npy")


def test_a_grid_below_one_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "codes.npy", np.zeros((2, 16), int))
    with pytest.raises(InputError, match="16 codes for a grid of -4x-4: change --grid"):
        read_npy(tmp_path / "codes.npy", tmp_path / "a.tok", grid=(-4, -4))
