"""RoIAlign: torchvision's formula in Python, values and gradients; a linear map has its own mean."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from tilework.layers.roi_align import level_of, read_pyramid, sampled


def boxes() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    corner = torch.rand(12, 2, generator=generator) * 70 - 6
    size = torch.rand(12, 2, generator=generator) * 50 + 0.5
    found = torch.cat([corner, corner + size], 1)
    found[0] = torch.tensor([-30.0, -30, 120, 120])  # beyond the map on all sides
    return found, torch.arange(12) % 2


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
