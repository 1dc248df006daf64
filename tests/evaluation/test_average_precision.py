"""Average precision: faster-coco-eval's figures, a slow one on a tiny case, outlines pasted back, what is ignored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tilework.core.batch import Batch, Target
from tilework.core.errors import ConfigError
from tilework.data.boxes import Boxes
from tilework.data.objects import Objects
from tilework.evaluation.average_precision import AveragePrecision, _truth, coco_figures, paste, run_length
from tilework.models import Detections, Output

pytest.importorskip("pycocotools")


def random_case(seed: int = 0, images: int = 6) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Objects, and answers near some of them."""
    rng = np.random.default_rng(seed)
    objects, answers = [], []
    for image in range(images):
        corner, size = rng.uniform(0, 150, (5, 2)), rng.uniform(8, 120, (5, 2))
        edges = np.concatenate([corner, corner + size], 1)
        labels = rng.integers(0, 3, 5)
        objects.append(Objects.of(edges.tolist(), labels.tolist(), (rng.random(5) < 0.15).tolist()))
        for box, label in zip(edges, labels, strict=True):
            for _ in range(rng.integers(0, 3)):
                x0, y0, x1, y1 = (box + rng.normal(0, 6, 4)).tolist()
                kind = int(label if rng.random() < 0.8 else rng.integers(3))
                bbox = [x0, y0, max(x1 - x0, 1), max(y1 - y0, 1)]
                answers.append({"image_id": image, "category_id": kind, "bbox": bbox, "score": float(rng.random())})
    return _truth(objects, np.full((images, 2), 300), 3, False), answers


@pytest.mark.parametrize("seed", [0, 1])
def test_figures_are_those_of_faster_coco_eval(seed: int) -> None:
    other = pytest.importorskip("faster_coco_eval")
    truth, answers = random_case(seed)
    found, _ = coco_figures(truth, answers, "bbox", 3)
    known = other.COCO(truth)
    judge = other.COCOeval_faster(known, known.loadRes(answers), "bbox")
    judge.evaluate()
    judge.accumulate()
    judge.summarize()
    names = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")
    for name, value in zip(names, judge.stats[:6], strict=True):
        assert found.get(name, -1) == pytest.approx(float(value), abs=1e-5)


def slow_ap(truth: dict[str, Any], answers: list[dict[str, Any]], overlap: float) -> float:
    """AP of one class without crowds: answers from the surest down, precision at 101 recalls, the best to the right."""

    def iou(a: list[float], b: list[float]) -> float:
        w = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
        h = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
        shared = max(w, 0) * max(h, 0)
        return shared / (a[2] * a[3] + b[2] * b[3] - shared)

    objects, taken, right = truth["annotations"], set(), []
    for one in sorted(answers, key=lambda a: -a["score"]):
        best, which = overlap, None
        for i, true in enumerate(objects):
            if i not in taken and true["image_id"] == one["image_id"] and iou(one["bbox"], true["bbox"]) >= best:
                best, which = iou(one["bbox"], true["bbox"]), i
        right.append(which is not None)
        taken.add(which)
    hits = np.cumsum(right)
    precision, recall = hits / np.arange(1, len(hits) + 1), hits / len(objects)
    at = [precision[recall >= r].max(initial=0) for r in np.linspace(0, 1, 101)]
    return float(np.mean(at))


def test_a_tiny_case_by_hand() -> None:
    truth, answers = random_case(3)
    for one in truth["annotations"]:
        one.update(category_id=0, iscrowd=0)
    answers = [{**one, "category_id": 0} for one in answers]
    found, each = coco_figures(truth, answers, "bbox", 1)
    assert found["ap50"] == pytest.approx(slow_ap(truth, answers, 0.5), abs=1e-6)
    assert found["ap75"] == pytest.approx(slow_ap(truth, answers, 0.75), abs=1e-6)
    mean = np.mean([slow_ap(truth, answers, overlap) for overlap in np.arange(0.5, 0.96, 0.05)])
    assert found["ap"] == pytest.approx(mean, abs=1e-6)
    assert each[0] == pytest.approx(found["ap"])


def test_nothing_found() -> None:
    truth, _ = random_case()
    found, each = coco_figures(truth, [], "bbox", 4)
    assert found["ap"] == 0
    assert np.isnan(each[3])  # no object has that class


class Known:
    """What the evaluator asks of data."""

    classes = ("a", "b")

    def objects(self, index: np.ndarray) -> list[Objects]:
        return [Objects.of([[10, 10, 30, 40]], [i % 2]) for i in index.tolist()]

    def sides_of(self, index: np.ndarray) -> np.ndarray:
        return np.full((len(index), 2), 60)


def seen(rows: list[int], wrong: float) -> tuple[Batch, Output]:
    """Objects found where they are, those of a batch in any order."""
    index = torch.tensor(rows)
    column = Boxes.of(Known().objects(index.numpy()), torch.full((len(rows), 2), 60.0))
    boxes = torch.tensor([[[5.0, 5, 15, 20], [0, 0, 0, 0]]]).repeat(len(rows), 1, 1) + wrong  # on an input of 30x30
    labels = torch.stack([index % 2, index * 0], 1)
    found = Detections(boxes, torch.tensor([[0.9, 0.0]]).repeat(len(rows), 1), labels)
    x = torch.zeros(len(rows), 3, 30, 30)
    return Batch(x, Target.hard(index * 0), index, {"boxes": column}), Output(x, x, x, (1, 1), found=found)


def evaluator(monkeypatch: pytest.MonkeyPatch) -> AveragePrecision:
    monkeypatch.setattr("tilework.evaluation.average_precision.detected", lambda source: source)
    return AveragePrecision(Known())  # type: ignore[arg-type]


def test_boxes_of_the_input_are_judged_on_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    one = evaluator(monkeypatch)
    one.update(*seen([3, 1], 0.0))
    one.update(*seen([0, 2], 0.0))
    figures, each = one.judge()
    assert figures["box_ap"] == pytest.approx(1)
    assert each["box"].tolist() == pytest.approx([1, 1])
    found = list(one.found())
    assert found[1].edges.tolist() == [pytest.approx([10, 10, 30, 40], abs=1e-4)]
    assert found[1].labels.tolist() == [1]


def test_processes_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, whole = (evaluator(monkeypatch) for _ in range(3))
    first.update(*seen([0, 2], 0.0))
    second.update(*seen([1, 3], 9.0))
    whole.update(*seen([0, 2], 0.0))
    whole.update(*seen([1, 3], 9.0))
    first.merge([first.state(), second.state()])
    assert first.compute() == whole.compute()
    assert 0 < first.compute()["box_ap"] < 1


def test_data_without_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, output = seen([0], 0.0)
    with pytest.raises(ConfigError, match="no boxes"):
        evaluator(monkeypatch).update(batch.changed(columns={}), output)


def test_data_that_know_no_objects() -> None:
    with pytest.raises(ConfigError, match="no boxes"):
        AveragePrecision(object())  # type: ignore[arg-type]


def test_a_mask_is_pasted_where_its_box_is() -> None:
    mask = np.zeros((28, 28), np.uint8)
    mask[:, :14] = 255
    found = paste(mask, np.array([10.0, 20, 38, 48]), (60, 50))
    assert found.sum() == 14 * 28
    assert found[20:48, 10:24].all()
    assert paste(mask, np.array([-14.0, 0, 14, 28]), (60, 50)).sum() == 0  # its left half is beyond the image
    assert paste(mask, np.array([5.0, 5, 5, 9]), (60, 50)).sum() == 0
    assert run_length(found)["size"] == [60, 50]
