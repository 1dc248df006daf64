"""Lane-parallel rANS: round trips, sizes near the entropy, golden bytes, a slow coder as oracle, hostile records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilework.core.errors import DamageError, InputError
from tilework.store import Packed, Pairwise, Rans, RansContext, choose_codec, codecs
from tilework.store.codec import Codec
from tilework.store.lanes import encode_lanes, quantise, starts_of

ROUND_TRIP = ["packed", "rans", "rans-context", "rans-stack", "pairwise"]


def split(codec: Codec, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    records, sizes = codec.encode(ids)
    assert sizes.sum() == len(records)
    return np.frombuffer(records, np.uint8), np.cumsum(sizes) - sizes, sizes


def reopened(name: str, codec: Codec, length: int, vocabulary: int, columns: int) -> Codec:
    """The same codec as a reader gets it."""
    return codecs[name].load(codec.tables(), length, vocabulary, columns)


@st.composite
def tokens(draw: st.DrawFn, largest: int) -> tuple[np.ndarray, int, int]:
    vocabulary = draw(st.integers(1, largest))
    rows, columns, images = draw(st.integers(1, 6)), draw(st.integers(1, 7)), draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["uniform", "one", "skewed", "last"]))
    shape = (images, rows * columns)
    if kind == "uniform":
        ids = rng.integers(0, vocabulary, shape)
    elif kind == "skewed":
        ids = np.minimum(rng.geometric(0.5, shape) - 1, vocabulary - 1)
    else:
        ids = np.full(shape, 0 if kind == "one" else vocabulary - 1)
    return ids, vocabulary, columns


@pytest.mark.parametrize("name", ROUND_TRIP)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_round_trip(name: str, data: st.DataObject) -> None:
    ids, vocabulary, columns = data.draw(
        tokens({"rans-context": 300, "rans-stack": 300, "pairwise": 60}.get(name, 1 << 20))
    )
    sample = ids[: data.draw(st.integers(1, len(ids)))]  # the rest may hold codes the sample never saw
    codec = reopened(name, codecs[name].fit(sample, vocabulary, columns), ids.shape[1], vocabulary, columns)
    bytes_, starts, sizes = split(codec, ids)
    np.testing.assert_array_equal(codec.decode(bytes_, starts, sizes), ids)
    some = np.random.default_rng(0).integers(0, len(ids), 5)  # any images, in any order, with repeats
    np.testing.assert_array_equal(codec.decode(bytes_, starts[some], sizes[some]), ids[some])
    none = np.empty(0, np.int64)
    assert codec.decode(bytes_, none, none).shape == (0, ids.shape[1])


def slow_record(symbols: list[int], frequencies: list[int], precision: int) -> bytes:
    """One lane with Python's own integers, word by word."""
    starts = [sum(frequencies[:s]) for s in range(len(frequencies))]
    x, words = 1 << 16, []
    for s in reversed(symbols):
        while x >= frequencies[s] << (32 - precision):
            words.append(x & 0xFFFF)
            x >>= 16
        x = (x // frequencies[s] << precision) + x % frequencies[s] + starts[s]
    return x.to_bytes(4, "little") + b"".join(word.to_bytes(2, "little") for word in reversed(words))


def test_every_lane_is_the_slow_coder() -> None:
    rng = np.random.default_rng(1)
    frequencies = quantise(rng.integers(0, 50, 9), 12)
    ids = rng.choice(9, (20, 40), p=frequencies / 4096)
    records, sizes = encode_lanes(frequencies[ids.T], starts_of(frequencies)[ids.T], 12)
    assert records == b"".join(slow_record(row, frequencies.tolist(), 12) for row in ids.tolist())
    assert sizes.sum() == len(records)


def test_golden_bytes() -> None:
    codec = Rans.fit(np.array([[390, 0, 511, 390, 390, 7]]), 512)
    records, sizes = codec.encode(np.array([[390, 0, 511], [390, 390, 390]]))
    assert (records.hex(), sizes.tolist()) == RANS_GOLDEN
    context = RansContext.fit(np.arange(64).reshape(4, 16) % 5, 6, 4)
    records, sizes = context.encode(np.arange(16)[None] % 5)
    assert (records.hex(), sizes.tolist()) == CONTEXT_GOLDEN


def fixed_pairwise() -> Pairwise:
    """Tables of whole numbers, so that learning plays no part."""
    tables = {
        "u": ((np.arange(4 * 6 * 3) * 37 % 61) - 30).reshape(4, 6, 3).astype(np.int8),
        "v": ((np.arange(5 * 3) * 23 % 41) - 20).reshape(5, 3).astype(np.int8),
        "bias": np.array([100, -50, 0, 300, 7], np.int32),
        "shift": np.array([3], np.int32),
        "table": np.maximum(0, 65535 - 64 * np.arange(1024)).astype(np.uint16),
    }
    return Pairwise.load(tables, 6, 5, 3)


def test_golden_bytes_of_pairwise_and_the_formula_of_the_format() -> None:
    codec = fixed_pairwise()
    ids = np.array([[4, 0, 3, 3, 1, 2], [0, 0, 0, 0, 0, 0]])
    records, sizes = codec.encode(ids)
    assert (records.hex(), sizes.tolist()) == PAIRWISE_GOLDEN
    tables = codec.tables()
    x = 1 << 16  # the first image once more, by docs/format.md in Python's integers
    words: list[int] = []
    for place in range(5, -1, -1):
        row, column = divmod(place, 3)
        around = [(row, column - 1), (row - 1, column), (row - 1, column - 1), (row - 1, column + 1)]
        near = [int(ids[0, r * 3 + c]) if r >= 0 and 0 <= c < 3 else 5 for r, c in around]
        hidden = [sum(int(tables["u"][q, near[q], k]) for q in range(4)) for k in range(3)]
        score = [int(tables["bias"][s]) + sum(hidden[k] * int(tables["v"][s, k]) for k in range(3)) for s in range(5)]
        mass = [int(tables["table"][min(1023, (max(score) - one) >> 3)]) for one in score]
        q = ((1 << 16) - 5 << 14) // sum(mass)
        frequency = [1 + (m * q >> 14) for m in mass]
        frequency[-1] += (1 << 16) - sum(frequency)
        code = int(ids[0, place])
        f, start = frequency[code], sum(frequency[:code])
        if x >= f << 16:
            words.append(x & 0xFFFF)
            x >>= 16
        x = (x // f << 16) + x % f + start
    record = x.to_bytes(4, "little") + b"".join(word.to_bytes(2, "little") for word in reversed(words))
    assert records[: sizes[0]] == record


PAIRWISE_GOLDEN = ("02f4653668193d1d", [4, 4])
RANS_GOLDEN = ("37984f00561f0900", [4, 4])
CONTEXT_GOLDEN = ("aaf01000", [4])


@pytest.mark.parametrize("counts", [[0, 0, 0], [1, 0, 0], [5, 5, 5], [10**12, 1, 3], [0] * 4095 + [9]])
def test_quantise_gives_every_symbol_a_slot(counts: list[int]) -> None:
    frequencies = quantise(np.array(counts), 12)
    assert frequencies.sum() == 4096
    assert frequencies.min() >= 1
    order = np.argsort(counts, kind="stable")
    assert (np.diff(frequencies[order].astype(int)) >= -1).all()  # more counts, no fewer slots


def test_too_many_symbols_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        quantise(np.ones(5000), 12)
    with pytest.raises(InputError, match="use codec 'rans'"):
        RansContext.fit(np.zeros((2, 4), int), 5000, 2)
    with pytest.raises(InputError, match="use codec 'rans'"):
        Pairwise.fit(np.zeros((2, 4), int), 9000, 2)


def entropy_bytes(ids: np.ndarray) -> float:
    p = np.bincount(ids.ravel()) / ids.size
    return float(-(p[p > 0] * np.log2(p[p > 0])).sum() * ids.shape[1] / 8)


def test_rans_is_within_one_percent_and_ten_bytes_of_the_entropy() -> None:
    rng = np.random.default_rng(0)
    ids = rng.choice(391, (300, 1024), p=rng.dirichlet(np.full(391, 0.5)))
    _, sizes = Rans.fit(ids, 391).encode(ids)
    index = 6  # two bytes of size and four of checksum
    assert sizes.mean() + index < 1.01 * entropy_bytes(ids) + 10


def neighbourly(images: int = 400, vocabulary: int = 40) -> np.ndarray:
    """Codes that mostly repeat or follow their left or upper neighbour."""
    rng = np.random.default_rng(0)
    grid = rng.integers(0, vocabulary, (images, 12, 12))
    for y in range(12):
        for x in range(12):
            draw = rng.random(images)
            if x:
                grid[:, y, x] = np.where(draw < 0.5, (grid[:, y, x - 1] + 1) % vocabulary, grid[:, y, x])
            if y:
                grid[:, y, x] = np.where(draw > 0.7, grid[:, y - 1, x], grid[:, y, x])
    return grid.reshape(images, -1)


def test_neighbours_help_where_they_tell_something() -> None:
    ids = neighbourly()
    plain, context = (c.encode(ids)[1].mean() for c in (Rans.fit(ids, 40), RansContext.fit(ids, 40, 12)))
    assert context < 0.8 * plain


def test_exact_neighbours_help_more_than_clusters() -> None:
    ids = neighbourly()
    context, pairwise = (c.encode(ids)[1].mean() for c in (RansContext.fit(ids, 40, 12), Pairwise.fit(ids, 40, 12)))
    assert pairwise < 0.95 * context


def test_pairwise_slots_are_a_partition_near_the_softmax() -> None:
    codec = Pairwise.fit(neighbourly(), 40, 12)
    rng = np.random.default_rng(0)
    around = [rng.integers(0, 41, 200) for _ in range(4)]
    ends = codec._ends(around).astype(np.int64)
    frequencies = np.diff(ends, axis=1, prepend=0)
    assert (ends[:, -1] == 1 << 16).all()
    assert frequencies.min() >= 1
    score = sum(codec.u[i].astype(float)[around[i]] for i in range(4)) @ codec.v.astype(float).T + codec.bias
    softmax = np.exp((score - score.max(1, keepdims=True)) / (64 << codec.shift))
    softmax /= softmax.sum(1, keepdims=True)
    assert np.abs(frequencies / (1 << 16) - softmax).max() < 0.01


def test_the_choice_is_the_smallest_with_tables_counted() -> None:
    rng = np.random.default_rng(0)
    assert choose_codec("auto", neighbourly(), 40, 12)[0] == "rans-context"
    assert choose_codec("auto", rng.choice(40, (400, 144), p=rng.dirichlet(np.full(40, 0.3))), 40, 12)[0] == "rans"
    assert choose_codec("auto", rng.integers(0, 256, (50, 64)), 256, 8)[0] == "packed"
    assert choose_codec("packed", neighbourly(), 40, 12)[0] == "packed"
    assert choose_codec("auto", rng.integers(0, 1 << 16, (4, 64)), 1 << 16, 8)[0] == "packed"
    with pytest.raises(InputError):
        choose_codec("rans-context", np.zeros((2, 4), int), 1 << 16, 2)


@pytest.mark.parametrize("name", ["rans", "rans-context", "rans-stack", "pairwise"])
def test_a_code_outside_the_vocabulary_is_refused_with_its_position(name: str) -> None:
    codec = codecs[name].fit(np.zeros((3, 4), int), 5, 2)
    with pytest.raises(InputError, match=r"code 5 \(position 3, image 1\) is outside 0\.\.4"):
        codec.encode(np.array([[0, 0, 0, 0], [0, 0, 0, 5]]))


@pytest.mark.parametrize("name", ["rans", "rans-context", "rans-stack", "pairwise"])
def test_hostile_records_give_our_own_error_or_codes_of_the_vocabulary(name: str) -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 30, (8, 64))
    codec = codecs[name].fit(ids, 30, 8)
    bytes_, starts, sizes = split(codec, ids)
    noticed = 0
    for _ in range(300):
        wrong = bytes_.copy()
        wrong[rng.integers(len(wrong))] ^= np.uint8(1 << rng.integers(8))
        try:
            out = codec.decode(wrong, starts, sizes)
            assert out.min() >= 0
            assert out.max() < 30
        except DamageError:
            noticed += 1
    # even without the CRC, a stream that does not end where it began is seen; of stacks a little less often
    assert noticed > (280 if name == "rans-stack" else 290)
    with pytest.raises(DamageError):
        codec.decode(bytes_, starts, sizes - 2)
    with pytest.raises(DamageError, match="too short"):
        codec.decode(bytes_, starts, np.full(8, 2))


def test_hostile_pairwise_tables_are_refused() -> None:
    tables = Pairwise.fit(neighbourly(40), 40, 12).tables()
    wide = np.zeros((4, 41, 65), np.int8)
    for wrong in (
        {},
        {**tables, "u": tables["u"][:3]},
        {**tables, "v": tables["v"].astype(np.int16)},
        {**tables, "u": wide, "v": np.zeros((40, 65), np.int8)},
        {**tables, "bias": tables["bias"] + np.int32(1 << 23)},
        {**tables, "shift": np.array([40], np.int32)},
        {**tables, "table": np.zeros_like(tables["table"])},
    ):
        with pytest.raises(DamageError, match="malformed"):
            Pairwise.load(wrong, 144, 40, 12)


@pytest.mark.parametrize("name", ["rans", "rans-context"])
def test_hostile_tables_are_refused(name: str) -> None:
    tables = codecs[name].fit(neighbourly(), 40, 12).tables()
    wrong = [
        {},
        {**tables, "frequencies": tables["frequencies"][:-1]},
        {**tables, "frequencies": np.zeros_like(tables["frequencies"])},
        {**tables, "frequencies": tables["frequencies"][::-1].copy() + np.array(1, tables["frequencies"].dtype)},
    ]
    if name == "rans-context":
        wrong += [{**tables, "left": tables["left"][1:]}, {**tables, "above": tables["above"] + np.uint8(200)}]
    for one in wrong:
        with pytest.raises(DamageError, match="malformed"):
            codecs[name].load(one, 144, 40, 12)


def test_packed_is_what_the_low_bits_use() -> None:
    ids = np.random.default_rng(0).integers(0, 1 << 17, (5, 33))
    codec = Rans.fit(ids, 1 << 17)
    assert codec.low_bits == 5
    bytes_, starts, sizes = split(codec, ids)
    np.testing.assert_array_equal(codec.decode(bytes_, starts, sizes), ids)
    low = Packed(33, 32).decode(bytes_, starts, np.full(5, Packed(33, 32).size))
    np.testing.assert_array_equal(low, ids & 31)


def test_the_worked_example_of_the_format() -> None:
    frequencies = np.array([3, 1], np.uint32)
    codes = np.array([[0], [1], [0]])  # (T, B)
    records, _ = encode_lanes(frequencies[codes], starts_of(frequencies)[codes], 2)
    assert records.hex(" ") in (Path(__file__).parents[2] / "docs/format.md").read_text()
