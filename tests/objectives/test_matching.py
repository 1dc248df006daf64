"""Which anchors learn which object: mmdetection's numbers, the rule written the slow way, and how many are drawn."""

from __future__ import annotations

import pytest
import torch

from small_dense import MMDET
from tilework.objectives import matching
from tilework.objectives.matching import NOTHING, UNSURE, Matching, match, sample

CASES = {
    "retina": Matching(0.5, 0.4, ignored=0),
    "rpn": Matching(0.7, 0.3, best_from=0.3, ignored=0),
    "roi": Matching(0.5, 0.5, best_from=0.5, ignored=0),
    "cascade": Matching(0.6, 0.6, best=False, ignored=0),
}


def random() -> tuple[torch.Tensor, torch.Tensor]:
    anchors, boxes = (torch.tensor(MMDET[f"random {name}"]).view(-1, 4) for name in ("anchors", "boxes"))
    return anchors, boxes


def flags(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(count, dtype=torch.bool), torch.zeros(count, dtype=torch.bool)


@pytest.mark.parametrize("name", CASES)
def test_anchors_are_assigned_as_by_mmdetection(name: str) -> None:
    anchors, boxes = random()
    found = match(anchors, boxes, *flags(9), CASES[name])
    theirs = torch.tensor(MMDET[f"assigned {name}"])  # 0: background, -1: ignored, else the object's number from 1
    wanted = torch.where(theirs > 0, theirs - 1, torch.where(theirs == 0, NOTHING, UNSURE))
    assert torch.equal(found, wanted)


def test_objects_in_parts_and_padding_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    anchors, boxes = random()
    whole = match(anchors, boxes, *flags(9), CASES["retina"])
    monkeypatch.setattr(matching, "TOGETHER", 2)
    assert torch.equal(match(anchors, boxes, *flags(9), CASES["retina"]), whole)
    padded = torch.cat([boxes, boxes[:3]])
    there = torch.arange(12) < 9
    assert torch.equal(match(anchors, padded, there, torch.zeros(12, dtype=torch.bool), CASES["retina"]), whole)


def test_no_objects_and_ten_thousand() -> None:
    anchors, _ = random()
    none = torch.zeros(0, 4), torch.zeros(0, dtype=torch.bool), torch.zeros(0, dtype=torch.bool)
    assert (match(anchors, *none, Matching()) == NOTHING).all()
    many = anchors[torch.arange(10_000) % 200] + 0.1
    assert (match(anchors, many, *flags(10_000), Matching()) >= 0).all()


def test_an_object_that_no_anchor_meets_takes_none() -> None:
    far = torch.tensor([[1000.0, 1000, 1010, 1010]])
    assert (match(random()[0], far, *flags(1), CASES["retina"]) == NOTHING).all()


def test_only_usable_anchors_are_matched() -> None:
    anchors, boxes = random()
    usable = torch.arange(200) % 2 == 0
    found = match(anchors, boxes, *flags(9), CASES["retina"], usable)
    assert torch.equal(found[usable], match(anchors[usable], boxes, *flags(9), CASES["retina"]))
    assert (found[~usable] == UNSURE).all()


def test_what_lies_in_a_crowd_is_not_learnt() -> None:
    anchors = torch.tensor([[0.0, 0, 10, 10], [0, 0, 40, 40], [60, 60, 70, 70]])
    crowd = torch.tensor([[0.0, 0, 20, 20]])
    there, ignored = torch.ones(1, dtype=torch.bool), torch.ones(1, dtype=torch.bool)
    assert match(anchors, crowd, there, ignored, Matching()).tolist() == [UNSURE, NOTHING, NOTHING]
    assert match(anchors, crowd, there, ignored, Matching(ignored=0)).tolist() == [NOTHING] * 3


@pytest.mark.parametrize(("positive", "share", "count"), [(3, 0.5, 3), (60, 0.5, 16), (60, 0.25, 8), (0, 0.5, 0)])
def test_so_many_are_drawn(positive: int, share: float, count: int) -> None:
    owner = torch.cat([torch.arange(positive), torch.full((200,), NOTHING), torch.full((40,), UNSURE)])
    torch.manual_seed(0)
    found = sample(owner, 32, share)
    assert found.there.sum() == 32
    assert found.positive.sum() == count
    assert found.positive[:count].all()  # those that are objects come first
    assert (owner[found.rows[found.positive]] >= 0).all()
    assert (owner[found.rows[found.there & ~found.positive]] == NOTHING).all()
    assert len(found.rows.unique()) == len(found.rows)


def test_fewer_than_asked_for() -> None:
    found = sample(torch.tensor([0, NOTHING, UNSURE]), 32, 0.5)
    assert found.there.sum() == 2
    assert found.positive.sum() == 1
