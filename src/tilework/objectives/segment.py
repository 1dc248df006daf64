"""Segmentation: cross-entropy of every pixel, and of a second head on one stage (Long et al., 2015; mmsegmentation).

B batch | K classes | h, w grid of the logits | H, W grid of the labels | M classes named per target
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.batch import Batch, Target
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError, InputError
from tilework.core.rng import Draws
from tilework.data.class_mask import VOID, ClassMask
from tilework.data.masked import COLUMN
from tilework.data.pairs import palette
from tilework.layers.conv_norm import ConvNorm, Norm, resized
from tilework.models import DenseModel, Output
from tilework.models.dense import ClassLayer
from tilework.objectives.objective import Objective, ObjectiveConfig, soft_cross_entropy
from tilework.objectives.task import Task


def class_mask(batch: Batch) -> ClassMask:
    """The masks of a batch."""
    column = batch.columns.get(COLUMN)
    if not isinstance(column, ClassMask):
        raise ConfigError("the data have no masks", "give images with masks, or a store of 'tilework tokenize --masks'")
    return column


@ObjectiveConfig.choices.add("segment")
@dataclass(frozen=True)
class SegmentConfig(ObjectiveConfig):
    """Settings of segmentation."""

    task: ClassVar[Task] = Task(
        labels=False,
        classes=True,
        columns=(COLUMN,),
        validation_columns=(COLUMN,),
        metric="miou",
        right="aacc",
        judged="pixels",
    )
    finer: int = 1  # labels for each position of the input, along a side: 1 of pixels, 8 of codes of 8 px
    over: Literal["all", "labelled"] = "all"  # pixels that the mean is over; void ones have no loss in either
    auxiliary: float = 0.4  # weight of a small head on one stage, which only training has; 0: none
    auxiliary_stage: int = -1  # that it reads
    auxiliary_channels: int = 256
    auxiliary_norm: Norm = "batch"
    mixing: bool = False  # whether samples may be mixed: no paper of segmentation here does

    def check(self, classes: tuple[str, ...], steps: int) -> None:
        """One class cannot be told from another."""
        if len(classes) < 2:
            raise InputError(f"the masks have one class only ('{classes[0]}')", "name a second class")

    def build(self, model: nn.Module, codebook: Codebook | None = None) -> Segment:
        """The objective around a network with a dense head."""
        if not isinstance(model, DenseModel):
            what = f"a {type(model).__name__} classifies images, not their pixels"
            raise ConfigError(what, "wrap it: model={name: upernet, backbone: ...}")
        if self.finer < 1 or self.over not in ("all", "labelled"):
            raise ConfigError(f"finer={self.finer}, over={self.over}", "give finer from 1, and over all or labelled")
        if not -len(model.stage_widths) <= self.auxiliary_stage < len(model.stage_widths):
            what = f"no stage {self.auxiliary_stage} among {len(model.stage_widths)}"
            raise ConfigError(what, "set objective.auxiliary_stage")
        return Segment(model, self)


class FcnHead(nn.Module):
    """A convolution and a classifier on one map (Long et al., 2015)."""

    def __init__(self, channels: int, width: int, classes: int, norm: Norm = "batch") -> None:
        super().__init__()
        self.conv = ConvNorm(channels, width, 3, norm)
        self.dropout = nn.Dropout2d(0.1)
        self.classify = ClassLayer(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, D, h, w); returns (B, K, h, w)."""
        return self.classify(self.dropout(self.conv(x)))


class Segment(Objective):
    """Cross-entropy of logits resized to the labels."""

    def __init__(self, model: DenseModel, config: SegmentConfig) -> None:
        super().__init__()
        self.model, self.config = model, config
        self.head: FcnHead | None = None
        if config.auxiliary:
            width = model.stage_widths[config.auxiliary_stage]
            self.head = FcnHead(width, config.auxiliary_channels, model.classes, config.auxiliary_norm)

    def answer(self, batch: Batch) -> tuple[Output, Target]:
        """The logits of every position, and the stage that the auxiliary head reads."""
        mask = class_mask(batch)
        if mask.mixed is not None and not self.config.mixing:
            what = "masks of mixed samples: the papers of segmentation mix none"
            raise ConfigError(what, "leave mixing out, or set objective.mixing=true")
        out: Output = self.model(batch.x, mix=batch.mix, stages=self.head is not None)
        return out, batch.target

    def losses(self, out: Output, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """Mean losses, and the share of pixels that are right."""
        mask, config = class_mask(batch), self.config
        grid = (batch.x.shape[-2] * config.finer, batch.x.shape[-1] * config.finer)
        labels = mask.at(*grid).long()  # (B, H, W)
        logits = resized(out.logits.float(), grid)
        main = self._loss(logits, labels, mask, grid)
        with torch.no_grad():  # on the grid of the head: labels are many
            coarse = mask.at(out.logits.shape[2], out.logits.shape[3])
            known = coarse != VOID
            right = ((out.logits.argmax(1) == coarse) & known).sum() / known.sum().clamp(min=1)
        found = {"loss": main, "accuracy": right}
        if self.head is not None:
            second = resized(self.head(out.stages[config.auxiliary_stage]).float(), grid)
            auxiliary = self._loss(second, labels, mask, grid)
            found |= {"loss": main + config.auxiliary * auxiliary, "main": main, "auxiliary": auxiliary}
        return found

    def _loss(self, logits: Tensor, labels: Tensor, mask: ClassMask, grid: tuple[int, int]) -> Tensor:
        """logits: (B, K, H, W); labels: (B, H, W)."""
        if mask.mixed is None:
            total = F.cross_entropy(logits, labels, ignore_index=VOID, reduction="sum")
            count = (labels != VOID).sum()
        else:
            target = mask.target(*grid)
            total = soft_cross_entropy(logits.flatten(2).transpose(1, 2), target).sum()
            count = target.mass.sum()
        return total / (labels.numel() if self.config.over == "all" else count.clamp(min=1))

    def pictures(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Masks as they are and as they are predicted, in colours."""
        out, mask = self.output(model, batch), class_mask(batch)
        colours = torch.zeros(256, 3, device=batch.x.device)
        colours[: out.logits.shape[1]] = torch.from_numpy(palette(out.logits.shape[1])).to(colours) / 255
        grid = (batch.x.shape[-2] * self.config.finer, batch.x.shape[-1] * self.config.finer)
        shown = {"true": mask.at(*grid).long(), "predicted": resized(out.logits, grid).argmax(1)}
        return {name: colours[ids].permute(0, 3, 1, 2) for name, ids in shown.items()}
