"""Overlap, coding, anchors: torchvision's functions, mmdetection's numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from small_dense import MMDET
from tilework.layers.anchors import anchors_at, grid_anchors
from tilework.layers.boxes import area, clip, covered, decode, encode, giou, iou


def random_boxes(count: int, seed: int = 0, side: float = 100.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(count, 2, generator=generator) * side
    return torch.cat([corner, corner + 1 + torch.rand(count, 2, generator=generator) * side / 2], 1)


def test_overlaps_are_those_of_torchvision(torchvision: Any) -> None:
    a, b = random_boxes(60), random_boxes(40, 1)
    assert torch.allclose(iou(a, b), torchvision.ops.box_iou(a, b), atol=1e-6)
    wanted = torchvision.ops.generalized_box_iou(a[:40], b).diagonal()
    assert torch.allclose(giou(a[:40], b), wanted, atol=1e-6)
    assert torch.allclose(area(a), torchvision.ops.box_area(a))


def test_overlap_by_counting_cells() -> None:
    a, b = torch.tensor([[0.0, 0, 4, 4]]), torch.tensor([[2.0, 1, 6, 3]])
    assert iou(a, b).item() == pytest.approx(4 / (16 + 8 - 4))
    assert covered(b, a).item() == pytest.approx(4 / 8)
    apart = torch.tensor([[10.0, 0, 14, 4]])
    assert giou(a, apart).item() == pytest.approx(-(14 * 4 - 32) / (14 * 4))


def test_offsets_are_those_of_mmdetection() -> None:
    anchors = torch.tensor(MMDET["random anchors"]).view(-1, 4)[:50]
    boxes = torch.tensor(MMDET["random boxes"]).view(-1, 4)[torch.arange(50) % 9]
    offsets = encode(anchors, boxes, (0.1, 0.1, 0.2, 0.2))
    assert torch.allclose(offsets.flatten(), torch.tensor(MMDET["encoded"]), atol=1e-3, rtol=1e-4)  # 6 digits kept
    assert torch.allclose(decode(anchors, offsets, (0.1, 0.1, 0.2, 0.2)), boxes, atol=1e-3)
    steep = offsets * 3 + torch.linspace(-30, 30, 50)[:, None] * torch.tensor([0, 0, 1.0, 1])
    found = decode(anchors, steep, (0.1, 0.1, 0.2, 0.2)).flatten()
    assert torch.allclose(found, torch.tensor(MMDET["decoded"]), atol=1e-2, rtol=1e-4)


def test_boxes_are_cut_at_what_is_shown() -> None:
    boxes = torch.tensor([[-3.0, 2, 5, 40], [1, 1, 2, 2]])
    assert clip(boxes, torch.tensor([0.0, 0, 4, 30])).tolist() == [[0, 2, 4, 30], [1, 1, 2, 2]]


def test_anchors_are_those_of_mmdetection() -> None:
    sizes = tuple(4 * 2 ** (i / 3) for i in range(3))
    grids = ((8, 12), (4, 6), (2, 3), (1, 2), (1, 1))
    found = grid_anchors(grids, (8.0, 16.0, 32.0, 64.0, 128.0), sizes, (0.5, 1.0, 2.0), torch.device("cpu"))
    assert len(found) == 9 * (96 + 24 + 6 + 2 + 1)
    assert torch.allclose(found[::13].flatten(), torch.tensor(MMDET["retina anchors"]), atol=1e-3, rtol=1e-5)


def test_an_anchor_has_the_size_and_aspect_asked_for() -> None:
    (x0, y0, x1, y1), *_ = anchors_at(8.0, (4.0,), (2.0,)).tolist()
    assert (x1 - x0) * (y1 - y0) == pytest.approx(32 * 32)
    assert (y1 - y0) / (x1 - x0) == pytest.approx(2)
    assert x0 + x1 == y0 + y1 == 0
