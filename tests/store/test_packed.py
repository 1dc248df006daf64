"""Codes in a fixed number of bits: round trips, golden bytes, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tilework.core.errors import DamageError, InputError
from tilework.store import Packed, codecs

INTEGERS = [np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, ">i4"]
edges = st.integers(0, 20).flatmap(lambda bits: st.sampled_from([2**bits, 2**bits + 1, max(1, 2**bits - 1)]))
vocabularies = st.one_of(st.integers(1, 2**20), edges.map(lambda value: min(value, 2**20)))


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, int, list[int]]:
    """Codes (B, T), their vocabulary, and any choice of images."""
    vocabulary = draw(vocabularies)
    shape = draw(st.tuples(st.integers(1, 6), st.integers(1, 20)))
    ids = draw(hnp.arrays(np.int64, shape, elements=st.integers(0, vocabulary - 1)))
    return ids, vocabulary, draw(st.lists(st.integers(0, shape[0] - 1), max_size=10))


def slow_record(row: list[int], bits: int) -> bytes:
    """One record as one large number, least significant code first."""
    number = sum(code << bits * place for place, code in enumerate(row))
    return number.to_bytes((len(row) * bits + 7) // 8, "little")


@settings(max_examples=150, deadline=None)
@given(problems())
def test_round_trip_of_any_images_in_any_order(problem: tuple[np.ndarray, int, list[int]]) -> None:
    ids, vocabulary, chosen = problem
    codec = Packed(ids.shape[1], vocabulary)
    data, sizes = codec.encode(ids)
    starts = np.cumsum(sizes) - sizes
    decoded = codec.decode(np.frombuffer(data, np.uint8), starts[chosen], sizes[chosen])
    assert decoded.dtype == np.int32
    np.testing.assert_array_equal(decoded, ids[chosen])


@settings(max_examples=100, deadline=None)
@given(problems())
def test_bytes_are_the_slow_formula(problem: tuple[np.ndarray, int, list[int]]) -> None:
    ids, vocabulary, _ = problem
    bits = next(bits for bits in range(1, 21) if 2**bits >= vocabulary)
    data, sizes = Packed(ids.shape[1], vocabulary).encode(ids)
    records = [slow_record(row, bits) for row in ids.tolist()]
    assert data == b"".join(records)
    assert sizes.tolist() == [len(record) for record in records]


def test_golden_bytes_of_three_bits() -> None:
    # 5 + (1 << 3) + (7 << 6) + (2 << 9) = 1485 = 0x05cd; 0 + (0 << 3) + (0 << 6) + (7 << 9) = 3584 = 0x0e00
    data, sizes = Packed(4, 8).encode(np.array([[5, 1, 7, 2], [0, 0, 0, 7]]))
    assert data.hex() == "cd05" + "000e"
    assert sizes.tolist() == [2, 2]


def test_golden_bytes_of_nine_bits() -> None:
    # 390 + (0 << 9) + (511 << 18) = 133955974 = 0x07fc0186 in 27 bits
    assert Packed(3, 512).encode(np.array([[390, 0, 511]]))[0].hex() == "8601fc07"


@pytest.mark.parametrize(
    ("vocabulary", "bits"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (391, 9), (512, 9), (513, 10)]
)
def test_bits_are_the_fewest_that_do(vocabulary: int, bits: int) -> None:
    assert Packed(8, vocabulary).encode(np.zeros((1, 8), np.int64))[1].tolist() == [bits]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_any_integer_type_gives_the_same_bytes(dtype: type[np.integer]) -> None:
    ids = np.array([[5, 1, 7, 2]], dtype)
    assert Packed(4, 8).encode(ids)[0].hex() == "cd05"


@pytest.mark.parametrize("code", [-1, 8, 255, 2**40])
def test_code_outside_the_vocabulary_is_refused_with_its_place(code: int) -> None:
    ids = np.zeros((3, 4), np.int64)
    ids[1, 2] = code
    with pytest.raises(InputError, match=rf"code {code} \(position 2, image 1\) is outside 0\.\.7"):
        Packed(4, 8).encode(ids)


def test_record_of_another_size_is_refused() -> None:
    with pytest.raises(DamageError, match="size of its codes"):
        Packed(4, 8).decode(np.zeros(8, np.uint8), np.array([0, 2]), np.array([2, 3]))


def test_record_with_a_code_outside_the_vocabulary_is_refused() -> None:
    data = np.frombuffer(slow_record([0, 5], 3), np.uint8)
    assert Packed(2, 6).decode(data, np.array([0]), np.array([1])).tolist() == [[0, 5]]
    with pytest.raises(DamageError, match="code 5 of 5"):
        Packed(2, 5).decode(data, np.array([0]), np.array([1]))


def test_records_may_lie_anywhere() -> None:
    data = np.frombuffer(b"\xff" * 3 + bytes.fromhex("cd05") + b"\xff", np.uint8)
    assert Packed(4, 8).decode(data, np.array([3]), np.array([2])).tolist() == [[5, 1, 7, 2]]


def test_no_records_decode_to_no_rows() -> None:
    nothing = np.zeros(0, np.int64)
    assert Packed(4, 8).decode(np.zeros(0, np.uint8), nothing, nothing).shape == (0, 4)


def test_packed_is_registered_and_needs_no_tables() -> None:
    codec = codecs["packed"].fit(np.zeros((2, 4), np.int64), 8)
    assert codec.tables() == {}
    again = codecs["packed"].load({}, 4, 8)
    assert again.encode(np.array([[5, 1, 7, 2]]))[0] == codec.encode(np.array([[5, 1, 7, 2]]))[0]
