"""How well objects are found: average precision of boxes and outlines (Lin et al., 2014), by pycocotools.

B batch | N images | n objects found on an image | K classes | s side of a mask | h, w pixels of an image
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.core.batch import Batch
from tilework.core.errors import ConfigError
from tilework.data.boxes import Boxes
from tilework.data.detected import COLUMN, Detected
from tilework.data.objects import Objects, coco_masks, coco_module, shape_mask
from tilework.data.source import Around, Source
from tilework.evaluation.evaluator import Evaluator
from tilework.models import Output

FIGURES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")  # the first six of COCO's twelve
TOGETHER = 256  # images whose outlines are drawn at a time


@dataclass(frozen=True)
class Found:
    """Objects found on one image."""

    edges: np.ndarray  # (n, 4) in pixels of the image
    scores: np.ndarray  # (n,)
    labels: np.ndarray  # (n,)
    masks: np.ndarray | None = None  # (n, s, s) uint8, 255 for certain


class AveragePrecision(Evaluator[Output]):
    """AP over overlaps from 0.5 to 0.95, at 0.5 and 0.75, and of small, medium and large objects.

    Objects are kept by image, in pixels of the image, and compared with what the data say when all have been seen.
    Crowds and difficult objects are ignored, as COCO ignores crowds.
    """

    def __init__(self, source: Source) -> None:
        super().__init__()
        coco_module("cocoeval")
        self.source, self.classes = detected(source), len(source.classes)

    def update(self, batch: Batch, output: Output) -> None:
        """See the objects found on a batch."""
        column, found = batch.columns.get(COLUMN), output.found
        if not isinstance(column, Boxes) or found is None:
            raise ConfigError("the data have no boxes", "give annotated images")
        edges = column.place.boxes_on_image(found.boxes, batch.x.shape[-2], batch.x.shape[-1])
        rows = torch.cat([edges, found.scores[..., None], found.labels[..., None].to(edges)], -1)  # (B, n, 6)
        masks = {} if found.masks is None else {"masks": (found.masks * 255).round().to(torch.uint8)}
        self.keep(batch, objects=rows, **masks)

    def found(self) -> Iterator[Found]:
        """What was found on each image, in the order of the data."""
        rows = self.rows("objects").cpu().numpy()
        masks = self.rows("masks").cpu().numpy() if "masks" in self._rows else None
        for i, row in enumerate(rows):
            there = row[:, 4] > 0
            own = None if masks is None else masks[i, there]
            yield Found(row[there, :4], row[there, 4], row[there, 5].astype(np.int64), own)

    def compute(self) -> dict[str, float]:
        """Shares; figures of sizes that no object has are left out."""
        return self.judge()[0]

    def judge(self) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        """Figures, and AP of each class, (K,): of boxes, and of outlines where they were found."""
        numbers = torch.cat(self._rows["index"]).sort().values.cpu().numpy()
        objects, sides = self.source.objects(numbers), self.source.sides_of(numbers)
        found = list(self.found())
        kinds = {"box": "bbox", "mask": "segm"} if found and found[0].masks is not None else {"box": "bbox"}
        figures: dict[str, float] = {}
        each: dict[str, np.ndarray] = {}
        truth = _truth(objects, sides, self.classes, "mask" in kinds)
        answers = _answers(found, sides, "mask" in kinds)
        for name, kind in kinds.items():
            values, by_class = coco_figures(truth, answers, kind, self.classes)
            figures |= {f"{name}_{key}": value for key, value in values.items()}
            each[name] = by_class
        return figures, each


def detected(source: Source) -> Detected:
    """The data set that knows objects, whatever lies around it."""
    while not isinstance(source, Detected):
        if not isinstance(source, Around):
            raise ConfigError("the data have no boxes", "give annotated images")
        source = source.source
    return source


def coco_figures(
    truth: dict[str, Any], answers: list[dict[str, Any]], kind: str, classes: int
) -> tuple[dict[str, float], np.ndarray]:
    """COCO's figures and AP of each class, not a number where a class has no object. kind: bbox or segm."""
    coco, cocoeval = coco_module("coco"), coco_module("cocoeval")
    with redirect_stdout(io.StringIO()):
        known = coco.COCO()
        known.dataset = truth
        known.createIndex()
        if not answers:
            there = {int(one["category_id"]) for one in truth["annotations"] if not one["iscrowd"]}
            return dict.fromkeys(FIGURES[:3], 0.0), np.array([0.0 if k in there else np.nan for k in range(classes)])
        judge = cocoeval.COCOeval(known, known.loadRes(answers), kind)
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    precision = judge.eval["precision"][:, :, :, 0, -1]  # (overlaps, recalls, K)
    by_class = np.where((precision > -1).any((0, 1)), np.where(precision > -1, precision, 0).mean((0, 1)), np.nan)
    values = zip(FIGURES, judge.stats[:6].tolist(), strict=True)
    return {name: value for name, value in values if value >= 0}, by_class


def _truth(objects: list[Objects], sides: np.ndarray, classes: int, outlines: bool) -> dict[str, Any]:
    """What the data say, as COCO's file does."""
    annotations: list[dict[str, Any]] = []
    for image, (one, (height, width)) in enumerate(zip(objects, sides.tolist(), strict=True)):
        for i in range(len(one)):
            x0, y0, x1, y1 = (float(edge) for edge in one.edges[i])
            about = {
                "id": len(annotations) + 1,
                "image_id": image,
                "category_id": int(one.labels[i]),
                "bbox": [x0, y0, x1 - x0, y1 - y0],
                "area": float(one.areas[i]),
                "iscrowd": int(one.ignored[i]),
            }
            if outlines:
                about["segmentation"] = run_length(shape_mask(one.shapes[i], (int(height), int(width))))
            annotations.append(about)
    images = [{"id": i, "height": int(h), "width": int(w)} for i, (h, w) in enumerate(sides.tolist())]
    categories = [{"id": i, "name": str(i)} for i in range(classes)]
    return {"info": {}, "images": images, "annotations": annotations, "categories": categories}


def _answers(found: list[Found], sides: np.ndarray, outlines: bool) -> list[dict[str, Any]]:
    """What was found, as COCO's results do."""
    answers: list[dict[str, Any]] = []
    for image, (one, (height, width)) in enumerate(zip(found, sides.tolist(), strict=True)):
        for i, (x0, y0, x1, y1) in enumerate(one.edges.astype(float).tolist()):
            about = {
                "image_id": image,
                "category_id": int(one.labels[i]),
                "bbox": [x0, y0, x1 - x0, y1 - y0],
                "score": float(one.scores[i]),
            }
            if outlines and one.masks is not None:
                about["segmentation"] = run_length(paste(one.masks[i], one.edges[i], (int(height), int(width))))
            answers.append(about)
    return answers


def run_length(mask: np.ndarray) -> dict[str, Any]:
    """Run lengths of a mask, as COCO's files have them. mask: (h, w) bool."""
    packed = coco_masks().encode(np.asfortranarray(mask.astype(np.uint8)))
    return {"size": [int(side) for side in packed["size"]], "counts": packed["counts"].decode()}


def paste(mask: np.ndarray, edges: np.ndarray, sides: tuple[int, int]) -> np.ndarray:
    """Where a mask of a box is above a half on the image, (h, w) bool, by bilinear interpolation at pixels' centres.

    mask: (s, s) uint8; edges: (4,).
    """
    height, width = sides
    x0, y0, x1, y1 = (float(edge) for edge in edges)
    left, top = max(0, int(np.floor(x0))), max(0, int(np.floor(y0)))
    right, bottom = min(width, int(np.ceil(x1))), min(height, int(np.ceil(y1)))
    out = np.zeros(sides, bool)
    if right <= left or bottom <= top or x1 <= x0 or y1 <= y0:
        return out
    x = (torch.arange(left, right) + 0.5 - x0) / (x1 - x0) * 2 - 1
    y = (torch.arange(top, bottom) + 0.5 - y0) / (y1 - y0) * 2 - 1
    grid = torch.stack(torch.broadcast_tensors(x[None], y[:, None]), -1)[None].float()
    values: Tensor = F.grid_sample(torch.from_numpy(mask)[None, None].float(), grid, align_corners=False)
    out[top:bottom, left:right] = values[0, 0].numpy() > 127.5
    return out
