"""How well masks are predicted: intersection over union, at the size of each image (Everingham et al., 2010).

B batch | K classes | h, w grid of the logits | H, W pixels of an image
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.core.batch import Batch
from tilework.core.errors import ConfigError
from tilework.data.class_mask import VOID, ClassMask
from tilework.data.masked import COLUMN
from tilework.evaluation.confusion import count_pairs
from tilework.evaluation.evaluator import Evaluator
from tilework.models import Output

FREQUENT = 0.04  # share of the labelled pixels from which a class counts as frequent


class MeanIou(Evaluator[Output]):
    """mIoU, mean accuracy of classes, accuracy of pixels, and the mIoU of frequent classes.

    Logits are interpolated to the pixels of the mask as it is stored, wherever the input lies on it; what the input
    does not show, and what is void, is not counted. Of each image the counts by class are kept, so that runs can be
    compared image by image.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def update(self, batch: Batch, output: Output) -> None:
        """See the logits of a batch, (B, K, h, w)."""
        mask = batch.columns.get(COLUMN)
        if not isinstance(mask, ClassMask):
            raise ConfigError("the data have no masks", "give images with masks")
        counts = torch.stack([self._count(output.logits[i : i + 1], mask, i) for i in range(len(batch.x))])
        self.add(counts=counts.sum(0))
        self.keep(batch, by_image=class_counts(counts))

    def _count(self, logits: Tensor, mask: ClassMask, row: int) -> Tensor:
        """Pairs of true and predicted classes of an image, (K, K)."""
        predicted, shown = on_image(logits, mask, row)
        true = mask.of_row(row).masked_fill(~shown, VOID)
        return count_pairs(true, predicted, self.classes)

    @property
    def counts(self) -> Tensor:
        """(K, K): rows are true classes, columns are predictions."""
        return self.total("counts")

    @property
    def by_image(self) -> Tensor:
        """Pixels that are right, true and predicted, of each image and class, (N, 3, K)."""
        return self.rows("by_image")

    def by_class(self) -> Tensor:
        """IoU of each class, (K,) float64; not a number where it neither occurs nor is predicted."""
        return iou(class_counts(self.counts))

    def compute(self) -> dict[str, float]:
        """Shares; of classes that neither occur nor are predicted nothing is counted."""
        return iou_figures(class_counts(self.counts))


def on_image(logits: Tensor, mask: ClassMask, row: int) -> tuple[Tensor, Tensor]:
    """The class of every pixel of an image, and whether the input shows it, (H, W) each. logits: (1, K, h, w)."""
    places = mask.places(row)  # (1, H, W, 2)
    seen = F.grid_sample(logits.float(), places, padding_mode="border", align_corners=False)
    return seen[0].argmax(0), (places[0].abs() < 1).all(-1)


def class_counts(counts: Tensor) -> Tensor:
    """Right, true and predicted pixels of each class, (..., 3, K). counts: (..., K, K)."""
    return torch.stack([counts.diagonal(dim1=-2, dim2=-1), counts.sum(-1), counts.sum(-2)], -2)


def iou(counts: Tensor) -> Tensor:
    """Right pixels over all that are true or predicted, (..., K) float64. counts: (..., 3, K)."""
    right, true, predicted = counts.double().unbind(-2)
    return right / (true + predicted - right)


def iou_figures(counts: Tensor) -> dict[str, float]:
    """The figures of sums over images. counts: (3, K)."""
    right, true, _ = counts.double().unbind(0)
    each = iou(counts)
    frequent = true > FREQUENT * true.sum()
    return {
        "miou": float(each.nanmean()),
        "macc": float((right / true)[true > 0].mean()),
        "aacc": float(right.sum() / true.sum()),
        "miou_frequent": float(each[frequent].mean()),
    }
