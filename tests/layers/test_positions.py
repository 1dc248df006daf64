"""Sine-cosine positions against a double loop; resized ones against known cases (timm: see the tests of weights)."""

from __future__ import annotations

import math

import pytest
import torch

from tilework.core.errors import ConfigError
from tilework.layers.positions import resize_positions, sincos_positions


@pytest.mark.parametrize(("width", "height", "columns"), [(8, 3, 5), (16, 4, 4), (4, 1, 7), (64, 14, 14)])
def test_equals_a_double_loop(width: int, height: int, columns: int) -> None:
    out = sincos_positions(width, height, columns)
    assert out.shape == (height * columns, width)
    quarter = width // 4
    for y in range(height):
        for x in range(columns):
            angles = [(10000 ** (-i / quarter)) for i in range(quarter)]
            row = [f(axis * rate) for axis in (x, y) for f in (math.sin, math.cos) for rate in angles]
            assert out[y * columns + x].tolist() == pytest.approx(row, abs=1e-5)


def test_golden_values() -> None:
    row = sincos_positions(8, 2, 3)[5]  # y = 1, x = 2, rates 1 and 0.01
    golden = [0.909297, 0.0199987, -0.416147, 0.9998, 0.841471, 0.0099998, 0.540302, 0.99995]
    assert row.tolist() == pytest.approx(golden, abs=1e-6)


def test_every_place_differs() -> None:
    out = sincos_positions(16, 6, 9)
    assert torch.cdist(out, out).fill_diagonal_(1).min() > 0.1


@pytest.mark.parametrize("width", [6, 7, 10])
def test_width_not_divisible_by_four_is_refused(width: int) -> None:
    with pytest.raises(ConfigError, match=f"divisible by 4, not {width}"):
        sincos_positions(width, 2, 2)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_resize_keeps_class_tokens_and_constant_maps(first: int) -> None:
    positions = torch.cat([torch.randn(1, first, 4), torch.full((1, 6, 4), 0.5)], 1)
    out = resize_positions(positions, (2, 3), (5, 4))
    assert out.shape == (1, first + 20, 4)
    assert torch.equal(out[:, :first], positions[:, :first])
    assert torch.allclose(out[:, first:], torch.tensor(0.5))


def test_resize_to_the_same_grid_changes_nothing() -> None:
    positions = torch.randn(1, 13, 4)
    assert torch.allclose(resize_positions(positions, (3, 4), (3, 4)), positions, atol=1e-6)


def test_resize_keeps_rows_and_columns_apart() -> None:
    rows = torch.arange(8.0).repeat_interleave(6).view(1, 48, 1)  # the value is the row
    out = resize_positions(rows, (8, 6), (16, 3)).view(16, 3)
    assert torch.allclose(out, out[:, :1].expand(-1, 3), atol=1e-5)
    assert torch.allclose(out + out.flip(0), torch.tensor(7.0), atol=1e-5)
    assert (out[4:-4].diff(dim=0) > 0).all()
