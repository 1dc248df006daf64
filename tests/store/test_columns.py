"""Columns: arrays and strings through safetensors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load

from tilework.core.errors import InputError
from tilework.store.columns import pack_column, unpack_column

TYPES = [np.uint8, np.int8, np.uint16, np.int32, np.int64, np.float32, np.float64, np.bool_]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(0,), (5,), (4, 3), (2, 2, 3)])
def test_array_round_trip(dtype: type[np.generic], shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    back = unpack_column(pack_column(values))
    assert back.dtype == values.dtype
    np.testing.assert_array_equal(back, values)


@given(hnp.arrays(np.int64, st.integers(0, 20)))
def test_any_integers_round_trip(values: np.ndarray) -> None:
    np.testing.assert_array_equal(unpack_column(pack_column(values)), values)


def test_array_in_another_memory_order_round_trips() -> None:
    values = np.arange(12).reshape(3, 4)
    np.testing.assert_array_equal(unpack_column(pack_column(values.T)), values.T)
    np.testing.assert_array_equal(unpack_column(pack_column(values[:, ::2])), values[:, ::2])


@given(st.lists(st.text(max_size=6), max_size=12))
def test_any_strings_round_trip(values: list[str]) -> None:
    assert unpack_column(pack_column(values)) == values


@pytest.mark.parametrize(
    "values", [[], [""], ["", "", ""], ["a", "", "b"], ["ü", "図", "\U0001f5bc", "e\u0301"], ["a\0b", "\n"]]
)
def test_empty_and_foreign_strings_round_trip(values: list[str]) -> None:
    assert unpack_column(pack_column(values)) == values


def test_strings_are_one_text_and_its_offsets() -> None:
    tensors = load(pack_column(["ab", "", "ü"]))
    assert tensors["text"].tobytes() == b"ab\xc3\xbc"
    assert tensors["offsets"].tolist() == [0, 2, 2, 4]
    assert tensors["offsets"].dtype == np.int64


def test_file_name_that_is_not_unicode_is_kept_or_refused() -> None:
    name = b"photo-\xff.png".decode("utf-8", "surrogateescape")  # what os.listdir gives for such a file
    try:
        packed = pack_column(["a", name])
    except InputError:
        return
    assert unpack_column(packed) == ["a", name]
