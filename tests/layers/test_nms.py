"""Non-maximum suppression: the greedy loop, written the slow way; torchvision's operator where there is one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from tilework.layers import nms
from tilework.layers.nms import greedy_fixed_point, native, survivors


def slow(boxes: Tensor, scores: Tensor, threshold: float) -> set[int]:
    """One box after another, the surest first."""

    def overlap(a: list[float], b: list[float]) -> float:
        w, h = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
        shared = max(w, 0) * max(h, 0)
        return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)

    rows, kept = boxes.double().tolist(), []
    for i in scores.argsort(descending=True, stable=True).tolist():
        if all(overlap(rows[i], rows[j]) <= threshold for j in kept):
            kept.append(i)
    return set(kept)


def crowded(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(count, 2, generator=generator) * 60
    boxes = torch.cat([corner, corner + 5 + torch.rand(count, 2, generator=generator) * 40], 1)
    return boxes, torch.rand(count, generator=generator)


@pytest.mark.parametrize("count", [1, 2, 50, 300])
@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7])
def test_the_fixed_point_is_the_greedy_result(count: int, threshold: float) -> None:
    boxes, scores = crowded(count, count)
    assert set(greedy_fixed_point(boxes, scores, threshold).nonzero()[:, 0].tolist()) == slow(boxes, scores, threshold)


def test_ties_and_copies() -> None:
    boxes = torch.tensor([[0.0, 0, 10, 10]]).repeat(5, 1)
    assert survivors(boxes, torch.ones(5), 0.5).tolist() == [True, False, False, False, False]
    assert survivors(boxes[:0], torch.ones(0), 0.5).shape == (0,)


def test_groups_do_not_suppress_each_other() -> None:
    boxes, scores = crowded(120, 3)
    group = torch.arange(120) % 3
    found = survivors(boxes - 30, scores, 0.5, group)
    for number in range(3):
        rows = (group == number).nonzero()[:, 0]
        kept = {i for i, one in enumerate(rows.tolist()) if found[one]}
        assert kept == slow(boxes[rows], scores[rows], 0.5)


def test_blocks_of_pairs_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes, scores = crowded(90, 5)
    whole = greedy_fixed_point(boxes, scores, 0.5)
    monkeypatch.setattr(nms, "ROWS", 100)
    assert torch.equal(greedy_fixed_point(boxes, scores, 0.5), whole)


def test_an_operator_is_used_where_it_runs_and_not_where_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> Tensor:
        raise NotImplementedError("no kernel for this device")

    def first(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
        return scores.argmax()[None]

    for operator, kept in ((fails, 2), (first, 1)):
        monkeypatch.setattr(nms, "import_module", lambda name, chosen=operator: SimpleNamespace(nms=chosen))
        monkeypatch.setattr(
            nms, "native_nms", lambda kind: native("nms", kind, (torch.zeros(1, 4), torch.zeros(1), 0.5))
        )
        boxes = torch.tensor([[0.0, 0, 1, 1], [5, 5, 6, 6]])
        assert survivors(boxes, torch.tensor([0.3, 0.4]), 0.5).sum() == kept
