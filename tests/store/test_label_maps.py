"""Label maps: round trips within the stated error, sizes on smooth maps, golden bytes, hostile records."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilework.core.errors import DamageError, InputError
from tilework.store.label_maps import HEADER, LARGEST_ID, VERSION, decode_maps, encode_map


def fields(rng: np.random.Generator, count: int, side: int, coarse: int) -> np.ndarray:
    """Smooth random fields, bilinear between coarse points, (count, side, side)."""
    points = rng.standard_normal((count, coarse + 1, coarse + 1))
    at = np.linspace(0, coarse, side)
    weight = np.maximum(0, 1 - np.abs(at[:, None] - np.arange(coarse + 1)))  # (side, coarse + 1)
    return weight @ points @ weight.T


def realistic(seed: int, side: int = 18, top: int = 5, classes: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """Six classes that cover the image, sixty that come and go, noise on all; ids and scores (side, side, top)."""
    rng = np.random.default_rng(seed)
    logits = np.concatenate([3 + 2.5 * fields(rng, 6, side, 4), 1.2 * fields(rng, 60, side, 6)])
    mass = np.exp(logits + 0.4 * rng.standard_normal(logits.shape))
    mass /= mass.sum(0) * (1 + 0.3 * rng.random((side, side)))  # the rest belongs to classes not named
    order = np.argsort(-mass, axis=0)[:top]
    ids = rng.choice(classes, 66, replace=False)[order]
    scores = np.take_along_axis(mass, order, 0).astype(np.float32)
    return np.moveaxis(ids, 0, -1), np.moveaxis(scores, 0, -1)


def random_map(seed: int, form: tuple[int, int, int], classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Any classes, distinct at a location, with descending scores."""
    rng = np.random.default_rng(seed)
    height, width, top = form
    start = rng.integers(0, classes, (height, width, 1))
    ids = (start + np.arange(top) * rng.integers(1, max(2, classes // top), (height, width, 1))) % classes
    scores = -np.sort(-(rng.random(form) ** 3), axis=-1)
    return ids, (scores / max(1, top)).astype(np.float32)


def dense(ids: np.ndarray, scores: np.ndarray, named: np.ndarray) -> np.ndarray:
    """Score of every named class at every location, in any order of entries. named: (C,); returns (..., C)."""
    return ((ids[..., None] == named) * scores[..., None]).sum(-2)


@settings(max_examples=60, deadline=None)
@given(
    form=st.tuples(st.integers(1, 7), st.integers(1, 7), st.integers(1, 20)),
    classes=st.sampled_from([20, 300, 1000, 70_000, LARGEST_ID + 1]),
    levels=st.sampled_from([1, 15, 63, 255]),
    images=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_round_trip_within_the_stated_error(
    form: tuple[int, int, int], classes: int, levels: int, images: int, seed: int
) -> None:
    maps = [random_map(seed + i, form, classes) for i in range(images)]
    back, shares = decode_maps([encode_map(ids, scores, levels) for ids, scores in maps])
    assert back.shape == shares.shape == (images, *form)
    assert (back.dtype, shares.dtype) == (np.int32, np.float32)
    assert (np.diff(shares, axis=-1) <= 0).all()
    for (ids, scores), some, share in zip(maps, back, shares, strict=True):
        named = np.unique(ids)
        assert np.isin(some[share > 0], named).all()
        assert np.abs(dense(ids, scores, named) - dense(some, share, named)).max() <= 0.5 / levels + 1e-6


def test_scores_come_back_within_1_in_126_and_small_ones_are_dropped() -> None:
    scores = np.linspace(0, 1, 10_001).reshape(73, 137, 1)
    _, shares = decode_maps([encode_map(np.full(scores.shape, 7), scores)])
    assert np.abs(shares[0] - scores).max() <= 1 / 126 + 1e-6
    assert ((shares[0] == 0) == (scores < 1 / 126)).all()


def test_realistic_maps_take_less_than_1800_bytes() -> None:
    maps = [realistic(seed) for seed in range(20)]
    ours = [len(encode_map(*one)) for one in maps]
    raw = [ids.astype("<u2").tobytes() + scores.astype("<f2").tobytes() for ids, scores in maps]
    assert max(ours) < 1800
    assert np.mean(ours) < 0.4 * np.mean([len(zlib.compress(one, 9)) for one in raw])
    assert len(raw[0]) == 6480


def test_a_map_of_one_class_is_tiny_and_an_empty_one_too() -> None:
    ids, scores = np.full((18, 18, 5), 70_001) + np.arange(5), np.zeros((18, 18, 5))
    assert len(encode_map(ids, scores)) < 40
    back, shares = decode_maps([encode_map(ids, scores)])
    assert not shares.any()
    assert back.min() >= 0
    scores[..., 0] = 1
    assert len(encode_map(ids, scores)) < 100
    back, shares = decode_maps([encode_map(ids, scores)])
    assert (back[..., 0] == 70_001).all()
    assert (shares[..., 0] == 1).all()


def test_more_than_255_classes_and_fewer_decode_in_one_batch() -> None:
    many = np.arange(18 * 18 * 5).reshape(18, 18, 5) * 1_000_003 % LARGEST_ID
    scores = np.tile([0.4, 0.3, 0.2, 0.05, 0.03], (18, 18, 1))
    few, others = realistic(0)
    back, shares = decode_maps([encode_map(many, scores), encode_map(few, others)] * 40)  # more than go together
    np.testing.assert_array_equal(back[::2], np.tile(many, (40, 1, 1, 1, 1)).reshape(back[::2].shape))
    alone = decode_maps([encode_map(few, others)])
    assert (back[1::2] == alone[0]).all()
    assert (shares[1::2] == alone[1]).all()
    assert (back.dtype, shares.dtype) == (np.int32, np.float32)


def test_records_of_other_precision_decode_in_one_batch() -> None:
    ids, scores = realistic(1)
    _, shares = decode_maps([encode_map(ids, scores, levels) for levels in (255, 10)])
    assert np.abs(shares[0] - scores).max() <= 1 / 510 + 1e-6
    assert 1 / 510 < np.abs(shares[1] - scores).max() <= 1 / 20 + 1e-6


def test_golden_bytes() -> None:
    ids = np.array([[[9, 4], [9, 70_000]]])
    record = encode_map(ids, np.array([[[0.75, 0.25], [1.0, 0.001]]]), 63)
    assert record[: HEADER.size].hex() == "023f0201010002000200"
    body = zlib.decompress(record[HEADER.size :], -15)
    assert body.hex() == "0405" + "01010200" + "102f3f"  # palette 4, 9; both classes, then the second; 16, 47, 63


def test_a_record_of_version_1_is_refused() -> None:
    """Its scores were made to sum to one over the classes of the data: it cannot be read as if it kept doubt."""
    old = bytes.fromhex("013f020102000200030062600402263001000000ffffd31116d611d611d60100")
    for records in ([old], [encode_map(*realistic(0)), old]):
        with pytest.raises(
            DamageError, match="version 1 of label maps, this software reads 2: annotate again"
        ) as caught:
            decode_maps(records)
        assert caught.value.exit_code == 5
    with pytest.raises(DamageError, match="update Tilework"):
        decode_maps([b"\3" + old[1:]])
    assert survives(b"\2" + old[1:]), "nothing else is wrong with it"


@pytest.mark.parametrize(
    ("ids", "scores", "levels"),
    [
        (np.zeros((2, 2), int), np.zeros((2, 2)), 63),
        (np.zeros((2, 2, 1), int), np.zeros((2, 2, 2)), 63),
        (np.zeros((2, 2, 1)), np.zeros((2, 2, 1)), 63),
        (np.zeros((0, 2, 1), int), np.zeros((0, 2, 1)), 63),
        (np.zeros((1, 4097, 1), int), np.zeros((1, 4097, 1)), 63),
        (np.zeros((1, 1, 256), int), np.zeros((1, 1, 256)), 63),
        (np.full((1, 1, 1), -1), np.ones((1, 1, 1)), 63),
        (np.full((1, 1, 1), 1 << 31), np.ones((1, 1, 1)), 63),
        (np.zeros((1, 1, 1), int), np.full((1, 1, 1), np.nan), 63),
        (np.zeros((1, 1, 1), int), np.full((1, 1, 1), 1.01), 63),
        (np.zeros((1, 1, 1), int), np.ones((1, 1, 1)), 256),
        (np.zeros((1, 1, 2), int), np.full((1, 1, 2), 0.5), 63),
        (np.arange(70_000).reshape(280, 250, 1), np.ones((280, 250, 1)), 63),
    ],
)
def test_what_a_record_cannot_hold_is_refused(ids: np.ndarray, scores: np.ndarray, levels: int) -> None:
    with pytest.raises(InputError):
        encode_map(ids, scores, levels)


def test_no_records_and_other_forms_are_refused() -> None:
    with pytest.raises(InputError):
        decode_maps([])
    with pytest.raises(DamageError, match="differ in form"):
        decode_maps([encode_map(*realistic(0)), encode_map(*realistic(0, top=4))])


def survives(record: bytes) -> bool:
    """Whether a record decodes, to the form in its header; anything but our own error is a failure."""
    try:
        ids, scores = decode_maps([record])
    except DamageError:
        return False
    height, width, top = int.from_bytes(record[4:6], "little"), int.from_bytes(record[6:8], "little"), record[2]
    assert ids.shape == scores.shape == (1, height, width, top)
    assert ids.min() >= 0
    assert scores.min() >= 0
    assert scores.max() <= 1
    return True


@pytest.mark.parametrize("side", [1, 6])
def test_every_truncation_is_noticed(side: int) -> None:
    record = encode_map(*realistic(0, side))
    assert survives(record)
    assert not any(survives(record[:end]) for end in range(len(record)))
    assert not survives(record + b"\0")


def test_every_flipped_bit_gives_our_own_error_or_a_map() -> None:
    for record in (encode_map(*realistic(0, 8)), encode_map(*random_map(0, (9, 9, 5), 1 << 20))):  # P > 255
        for bit in range(8 * len(record)):
            wrong = bytearray(record)
            wrong[bit // 8] ^= 1 << bit % 8
            survives(bytes(wrong))


@settings(max_examples=300, deadline=None)
@given(
    levels=st.integers(0, 255),
    form=st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 4)),
    width=st.sampled_from([0, 1, 2, 3, 4]),
    last=st.integers(0, 300),
    body=st.binary(max_size=80),
    repeat=st.integers(1, 20),
)
def test_any_body_gives_our_own_error_or_a_map(
    levels: int, form: tuple[int, int, int], width: int, last: int, body: bytes, repeat: int
) -> None:
    head = HEADER.pack(VERSION, levels, form[2], width, form[0], form[1], last)
    survives(head + body)
    survives(head + zlib.compress(body * repeat)[2:-4])


def packed(
    form: tuple[int, int, int], last: int, width: int, body: bytes, levels: int = 63, version: int = VERSION
) -> bytes:
    return HEADER.pack(version, levels, form[2], width, form[0], form[1], last) + zlib.compress(body, 9)[2:-4]


def test_bodies_that_contradict_themselves_are_refused() -> None:
    form = (1, 2, 2)
    good = b"\4\5" + b"\1\1\2\0" + b"\x10\x2f\x3f"
    assert survives(packed(form, 2, 1, good))
    for wrong in (
        packed(form, 2, 1, good, version=1),
        packed(form, 2, 1, good, version=3),
        packed(form, 2, 1, good, levels=0),
        packed(form, 2, 1, good, levels=62),  # a score above 1
        packed(form, 2, 3, good),
        packed(form, 2, 1, good[:-1]),  # a score is missing
        packed(form, 2, 1, good + b"\1"),  # one too many
        packed(form, 2, 1, good[:-1] + b"\0"),  # kept, yet 0
        packed(form, 2, 1, b"\4\5" + b"\1\2\2\0" + b"\x10\x2f\x3f"),  # outside the palette
        packed(form, 2, 1, b"\4\5" + b"\xff\xff\2\0" + b"\x10\x2f\x3f"),
        packed(form, 2, 4, b"\xff\xff\xff\xff" * 2 + good[2:]),  # an id above all ids
        packed((4096, 4096, 255), 2, 1, good),
        packed(form, 2, 1, b"\1" * (1 << 24)),  # a bomb
    ):
        assert not survives(wrong)
