"""RoIAlign: torchvision's formula in Python, values and gradients; its kernel's rule beyond the map, point by point."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from tilework.layers.roi_align import level_of, read_pyramid, sampled


def boxes() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    corner = torch.rand(12, 2, generator=generator) * torch.tensor([60.0, 40.0])
    size = torch.rand(12, 2, generator=generator) * 20 + 0.5
    return torch.cat([corner, corner + size], 1), torch.arange(12) % 2


@pytest.mark.parametrize(("side", "points"), [(7, 2), (3, 1)])
def test_values_and_gradients_are_those_of_torchvision(torchvision: Any, side: int, points: int) -> None:
    _roi_align = sys.modules["torchvision.ops.roi_align"]._roi_align.__wrapped__  # as it is written, not compiled
    x = torch.randn(2, 3, 15, 20, generator=torch.Generator().manual_seed(1), requires_grad=True)
    at, image = boxes()
    rows = torch.cat([image[:, None].float(), at], 1)
    wanted = _roi_align(x, rows, 1 / 4, side, side, points, True)
    found = sampled(x, at, image, 4.0, side, points)
    assert torch.allclose(found, wanted, atol=1e-5)
    weight = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(2))
    (one,) = torch.autograd.grad((wanted * weight).sum(), x, retain_graph=True)
    (two,) = torch.autograd.grad((found * weight).sum(), x)
    assert torch.allclose(one, two, atol=2e-5)


def at_point(x: torch.Tensor, down: float, across: float) -> float:
    """What torchvision's kernels read at a point: nothing where it is far beyond the map, else between neighbours."""
    height, width = x.shape
    if not (-1 <= down <= height and -1 <= across <= width):
        return 0.0
    down, across = min(max(down, 0), height - 1), min(max(across, 0), width - 1)
    top, left = int(down), int(across)
    below, right = min(top + 1, height - 1), min(left + 1, width - 1)
    v, u = down - top, across - left
    upper, lower = (x[row, left] * (1 - u) + x[row, right] * u for row in (top, below))
    return float(upper * (1 - v) + lower * v)


def test_points_beyond_the_map() -> None:
    x = torch.randn(6, 9, generator=torch.Generator().manual_seed(3))
    box = [-13.0, -9.0, 55.0, 30.0]
    found = sampled(x[None, None], torch.tensor([box]), torch.zeros(1, dtype=torch.int64), 4.0, 5)[0, 0]
    for row in range(5):
        for column in range(5):
            total = 0.0
            for i in (0.25, 0.75):
                for j in (0.25, 0.75):
                    down = box[1] / 4 - 0.5 + (row + i) * (box[3] - box[1]) / 20
                    across = box[0] / 4 - 0.5 + (column + j) * (box[2] - box[0]) / 20
                    total += at_point(x, down, across) / 4
            assert found[row, column].item() == pytest.approx(total, abs=1e-5)


def test_a_slope_is_read_at_the_centres_of_bins() -> None:
    x = torch.arange(20.0).expand(1, 1, 20, 20)  # value = column; a pixel's centre is at column + 0.5
    found = sampled(x, torch.tensor([[4.0, 4, 12, 12]]), torch.zeros(1, dtype=torch.int64), 1.0, 4)
    assert torch.allclose(found[0, 0, 0], torch.tensor([4.5, 6.5, 8.5, 10.5]), atol=1e-5)


def test_no_boxes() -> None:
    x = torch.randn(2, 3, 8, 8)
    none = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)
    assert sampled(x, *none, 4.0, 7).shape == (0, 3, 7, 7)
    assert read_pyramid([x, x], (4.0, 8.0), *none, 7).shape == (0, 3, 7, 7)


def test_levels_by_size() -> None:
    sides = torch.tensor([10.0, 111, 113, 223, 225, 449, 5000])
    squares = torch.stack([torch.zeros(7), torch.zeros(7), sides, sides], 1)
    assert level_of(squares, 4.0, 4).tolist() == [0, 0, 1, 1, 2, 3, 3]
    assert level_of(squares / 8, 0.5, 4).tolist() == [0, 0, 1, 1, 2, 3, 3]  # in codes of 8 px


def test_each_box_reads_its_level() -> None:
    maps = [torch.full((1, 1, 64 >> i, 64 >> i), float(i)) for i in range(4)]
    sides = torch.tensor([50.0, 120, 230])
    squares = torch.stack([torch.zeros(3), torch.zeros(3), sides, sides], 1)
    found = read_pyramid(maps, (4.0, 8.0, 16.0, 32.0), squares, torch.zeros(3, dtype=torch.int64), 7)
    assert found.mean((1, 2, 3)).round().tolist() == [0, 1, 2]
