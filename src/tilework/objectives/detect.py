"""Detection by dense anchors: focal loss of classes, L1 of boxes (Lin et al., 2017, RetinaNet).

B batch | A anchors | M objects | K classes
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.batch import Batch
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.data.boxes import Boxes
from tilework.data.detected import COLUMN
from tilework.data.objects import coco_module
from tilework.layers.boxes import encode
from tilework.models import Detector, Output
from tilework.models.retinanet import Retinanet
from tilework.objectives.matching import UNSURE, Matching, match
from tilework.objectives.objective import Objective, ObjectiveConfig
from tilework.objectives.task import Task

EDGE = 1e-3


def boxes_of(batch: Batch) -> Boxes:
    """The objects of a batch."""
    column = batch.columns.get(COLUMN)
    if not isinstance(column, Boxes):
        raise ConfigError("the data have no boxes", "give annotated images, or a store of 'tilework tokenize --boxes'")
    return column


@dataclass(frozen=True)
class FindConfig(ObjectiveConfig):
    """What objectives of detection have in common."""

    task: ClassVar[Task] = Task(
        labels=False, classes=True, columns=(COLUMN,), validation_columns=(COLUMN,), metric="box_ap"
    )
    smallest: float = 1.0  # side of an object on the input, in its positions, below which it is left out
    visible: float = 0.0  # share of an object that a crop must leave of it

    def check(self, classes: tuple[str, ...], steps: int) -> None:
        """Average precision is pycocotools'."""
        coco_module("cocoeval")


class Find(Objective):
    """Finds objects; what they have in common."""

    model: Detector
    config: FindConfig

    def output(self, model: nn.Module, batch: Batch) -> Output:
        """What a model says of samples, with the objects it finds."""
        assert isinstance(model, Detector)
        return model.answer(batch.x, boxes_of(batch).place.extent(batch.x.shape[-2], batch.x.shape[-1]))

    def targets(self, batch: Batch) -> tuple[Boxes, Tensor, Tensor]:
        """The objects, their edges on the input, (B, M, 4), and whether they can be seen there, (B, M)."""
        column = boxes_of(batch)
        edges, seen = column.at(batch.x.shape[-2], batch.x.shape[-1], self.config.smallest, self.config.visible)
        return column, edges, seen


@ObjectiveConfig.choices.add("detect")
@dataclass(frozen=True)
class DetectConfig(FindConfig):
    """Settings of detection by dense anchors."""

    matching: Matching = field(default_factory=Matching)
    alpha: float = 0.25  # weight of objects in the focal loss
    gamma: float = 2.0  # how much less easy anchors count

    def build(self, model: nn.Module, codebook: Codebook | None = None) -> Detect:
        """The objective around a RetinaNet."""
        if not isinstance(model, Retinanet):
            what = f"a {type(model).__name__} has no classes of dense anchors"
            raise ConfigError(what, "set model={name: retinanet, backbone: ...}, or objective={name: rcnn}")
        return Detect(model, self)


class Detect(Find):
    """Sums over anchors by the number of those that are objects."""

    def __init__(self, model: Retinanet, config: DetectConfig) -> None:
        super().__init__()
        self.model, self.config = model, config

    def losses(self, out: Output, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """The sum of both losses, each of them, and how many anchors of an image are objects."""
        config: Any = self.config
        column, edges, seen = self.targets(batch)
        assert out.offsets is not None
        anchors = self.model.anchors(out.stages)
        extent = column.place.extent(batch.x.shape[-2], batch.x.shape[-1])
        shown = centres_inside(anchors, extent)  # (B, A)
        with torch.no_grad():
            each_owner = [
                match(anchors, edges[i], seen[i], column.ignored[i], config.matching, shown[i])
                for i in range(len(edges))
            ]
            owner = torch.stack(each_owner)
            positive, learnt = owner >= 0, owner != UNSURE
            count = positive.sum().clamp(min=1)
            label = of_owner(column.labels, owner).masked_fill(~positive, -1)  # (B, A)
            target = (label[..., None] == torch.arange(out.logits.shape[-1], device=label.device)).float()
        each = sigmoid_focal(out.logits.float(), target, config.alpha, config.gamma)
        classes = (each * learnt[..., None]).sum() / count
        wanted = encode(anchors, of_owner(edges, owner))
        apart = F.l1_loss(out.offsets.float(), torch.where(positive[..., None], wanted, 0), reduction="none")
        boxes = (apart * positive[..., None]).sum() / count
        return {"loss": classes + boxes, "classes": classes, "boxes": boxes, "positive": positive.sum() / len(owner)}


def of_owner(values: Tensor, owner: Tensor) -> Tensor:
    """Values of every anchor's object, (B, A, ...); anything where it has none. values: (B, M, ...); owner: (B, A)."""
    if not values.shape[1]:
        return values.new_zeros(*owner.shape, *values.shape[2:])
    sample = torch.arange(len(owner), device=owner.device)[:, None]
    return values[sample, owner.clamp(min=0)]


def centres_inside(anchors: Tensor, extent: Tensor) -> Tensor:
    """Whether the image is where an anchor's centre lies, (B, A): what fills the input beside it is not learnt."""
    middle = (anchors[:, :2] + anchors[:, 2:]) / 2
    return within(middle, middle, extent)


def within(low: Tensor, high: Tensor, extent: Tensor) -> Tensor:
    """Whether corners lie on the image, the lower right edge excluded, as in mmdetection, (B, A). low, high: (A, 2).

    Edges of images are rounded on their way through a map: by less than a thousandth of a position.
    """
    return ((low > extent[:, None, :2] - EDGE) & (high < extent[:, None, 2:] - EDGE)).all(-1)


def sigmoid_focal(logits: Tensor, target: Tensor, alpha: float, gamma: float) -> Tensor:
    """Cross-entropy that counts easy values less (Lin et al., 2017, eq. 5). Any shape."""
    p = logits.sigmoid()
    missed = (1 - p) * target + p * (1 - target)
    weight = (alpha * target + (1 - alpha) * (1 - target)) * missed**gamma
    return F.binary_cross_entropy_with_logits(logits, target, reduction="none") * weight
