"""Masks in a store: nothing is lost, golden bytes, size beside PNG, hostile records."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tilework.core.errors import DamageError, InputError
from tilework.store.masks import HEADER, LANES, decode_mask, encode_mask, mask_size


def scene(height: int = 120, width: int = 160, seed: int = 0) -> np.ndarray:
    """Discs over a horizon, with ragged edges as people draw them."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    mask = (y > height // 3 + 4 * np.sin(x / 9)).astype(np.uint8)
    for number in range(6 * height // 120):
        cy, cx, r = rng.integers(0, height), rng.integers(0, width), rng.integers(6, 24)
        mask[(y - cy) ** 2 + (x - cx) ** 2 + rng.integers(0, 9, mask.shape) < r * r] = 2 + number % 9
    mask[:2] = 255
    return mask


@given(
    st.integers(1, 70), st.integers(1, 70), st.sampled_from([1, 2, 3, 12, 256]), st.integers(1, 9), st.integers(0, 99)
)
@settings(max_examples=60, deadline=None)
def test_masks_come_back_as_they_were(height: int, width: int, classes: int, grain: int, seed: int) -> None:
    small = np.random.default_rng(seed).integers(0, classes, (height, width)).astype(np.uint8)
    mask = np.repeat(np.repeat(small, grain, 0), grain, 1)[: height + 3, : width + 5]
    record = encode_mask(np.ascontiguousarray(mask))
    assert np.array_equal(decode_mask(record), mask)
    assert mask_size(record) == mask.shape


def test_a_scene_is_at_most_half_of_its_png() -> None:
    mask = scene(360, 480)
    png = io.BytesIO()
    Image.fromarray(mask).save(png, "PNG", optimize=True)
    record = encode_mask(mask)
    assert np.array_equal(decode_mask(record), mask)
    assert len(record) <= 0.5 * len(png.getvalue())


def test_golden_bytes() -> None:
    mask = np.zeros((5, 7), np.uint8)
    mask[2:, 3:] = 4
    mask[4, 0] = 255
    head, rest = encode_mask(mask)[: HEADER.size], encode_mask(mask)[HEADER.size :]
    assert head.hex() == GOLDEN[0]
    assert rest.hex() == GOLDEN[1]
    assert np.array_equal(decode_mask(bytes.fromhex("".join(GOLDEN))), mask)


GOLDEN = (
    "0105000700030001000000020000000b000000",
    "6360f9cfc0840618189900bcd8000cf93dca01da57050016bc0a000000010000000100000001000000010000000100000001"
    "00000001000000010000000100000001000000010000000100",
)


@pytest.mark.parametrize("wrong", [np.zeros((2, 2)), np.zeros((2, 2, 1), np.uint8), np.zeros((0, 3), np.uint8)])
def test_other_arrays_are_refused(wrong: np.ndarray) -> None:
    with pytest.raises(InputError, match="a mask of"):
        encode_mask(wrong)


def test_damage_is_found_or_gives_a_mask_of_the_size_told() -> None:
    mask = scene()
    record = encode_mask(mask)
    for cut in (0, 5, HEADER.size, HEADER.size + 4 * LANES, len(record) // 2, len(record) - 1):
        with pytest.raises(DamageError):
            decode_mask(record[:cut])
    with pytest.raises(DamageError):
        decode_mask(record + b"\0")
    rng = np.random.default_rng(0)
    for _ in range(120):
        hurt = bytearray(record)
        hurt[int(rng.integers(0, len(hurt)))] ^= 1 << int(rng.integers(0, 8))
        try:
            found = decode_mask(bytes(hurt))
        except DamageError:
            continue
        assert found.dtype == np.uint8
        assert found.size <= 1 << 24


def test_sizes_are_bounded_before_anything_is_allocated() -> None:
    record = bytearray(encode_mask(scene()))
    for height, width in ((0, 5), (65535, 65535), (1 << 14, 1 << 11)):
        record[1:5] = height.to_bytes(2, "little") + width.to_bytes(2, "little")
        with pytest.raises(DamageError):
            decode_mask(bytes(record))
    record[0] = 9
    with pytest.raises(DamageError, match="version 9"):
        decode_mask(bytes(record))
