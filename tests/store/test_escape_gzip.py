"""The paper's coding against its algorithms written out, and against Python's gzip."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilework.core.errors import DamageError, InputError
from tilework.store.escape_gzip import escape, pack, unescape, unpack


def algorithm1(ids: list[list[int]], top: int) -> tuple[list[int], list[int]]:
    """One image after another, code by code, the escape repeated as often as needed."""
    symbols: list[int] = []
    offsets = [0]
    for image in ids:
        for code in image:
            while code >= top:
                symbols.append(top)
                code -= top
            symbols.append(code)
        offsets.append(len(symbols))
    return symbols, offsets


@given(st.integers(1, 12), st.integers(1, 9), st.integers(1, 5), st.integers(1, 5000), st.integers(0, 2**32 - 1))
def test_equals_the_algorithm_and_comes_back(bits: int, length: int, images: int, vocabulary: int, seed: int) -> None:
    ids = np.random.default_rng(seed).integers(0, vocabulary, (images, length))
    symbols, offsets = escape(ids, bits)
    assert (symbols.tolist(), offsets.tolist()) == algorithm1(ids.tolist(), (1 << bits) - 1)
    np.testing.assert_array_equal(unescape(symbols, offsets, bits), ids)


def test_golden_symbols_of_the_published_files() -> None:
    symbols, offsets = escape(np.array([[390, 0, 254, 255], [1, 2, 3, 510]]))
    assert symbols.tolist() == [255, 135, 0, 254, 255, 0, 1, 2, 3, 255, 255, 0]
    assert offsets.tolist() == [0, 6, 12]


def test_gzip_reads_what_we_write_and_we_read_what_gzip_writes() -> None:
    symbols, _ = escape(np.random.default_rng(0).integers(0, 391, (20, 64)))
    assert gzip.decompress(pack(symbols)) == symbols.tobytes()
    np.testing.assert_array_equal(unpack(gzip.compress(symbols.tobytes())), symbols)
    assert pack(symbols) == pack(symbols)  # no time stamp


def test_damage_is_noticed() -> None:
    symbols, offsets = escape(np.random.default_rng(0).integers(0, 391, (5, 16)))
    data = pack(symbols)
    for wrong in (data[:-3], b"not gzip", data[:30] + bytes([data[30] ^ 1]) + data[31:]):
        with pytest.raises(DamageError):
            unpack(wrong)
    with pytest.raises(DamageError, match="more than 50 bytes"):
        unpack(data, largest=50)
    for broken in (offsets[:-1], offsets[1:], np.r_[offsets[:2], offsets[1:]], np.r_[0, offsets[1] - 1, offsets[2:]]):
        with pytest.raises(DamageError):
            unescape(symbols, broken)
    with pytest.raises(DamageError, match="inside an escape"):
        unescape(np.r_[symbols, np.uint8(255)], np.r_[offsets[:-1], offsets[-1] + 1])
    with pytest.raises(InputError):
        escape(np.array([[-1]]))
