"""What networks that find objects have in common: a feature pyramid, anchors, and the choice of the best boxes.

B batch | A anchors of all levels | K classes | N boxes of an image | n of them kept
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tilework.core.errors import ConfigError
from tilework.layers.anchors import grid_anchors
from tilework.layers.necks import MultilevelNeck, NeckName
from tilework.layers.nms import survivors
from tilework.models.dense import DenseConfig, DenseModel
from tilework.models.model import Detections, Model, Output


@dataclass(frozen=True)
class DetectorConfig(DenseConfig):
    """Settings of a detector around a backbone."""

    channels: int = 256  # of the pyramid and the heads
    neck: NeckName = "none"  # before the pyramid; for networks without stages: their maps at four strides
    ratios: tuple[float, ...] = (0.5, 1.0, 2.0)  # of anchors, height to width
    least: float = 0.05  # score of what is found
    overlap: float = 0.5  # of two objects of a class, above which the less sure one is dropped
    most: int = 100  # objects of an image

    def for_tokens(self) -> Any:
        """The same with the backbone's stem for code maps."""
        return replace(self, backbone=self.backbone.for_tokens())


class Detector(DenseModel):
    """Logits (B, A, K) and offsets (B, A, 4) of all anchors; `find` turns them into objects.

    Boxes are measured in positions of the input: pixels, or codes.
    """

    sizes: tuple[float, ...]  # of anchors, in strides of their level
    strides: tuple[float, ...]  # of the levels
    config: DetectorConfig

    def __init__(self, config: DetectorConfig, backbone: Model, classes: int) -> None:
        super().__init__(backbone, classes)
        self.config = config
        widths, strides = backbone.stage_widths, backbone.stage_strides
        if config.neck == "none" and len(set(strides)) < len(strides):
            name = type(backbone).__name__
            raise ConfigError(f"all maps of a {name} have one stride", "set model.neck=multilevel")
        self.scales = None
        if config.neck != "none":
            self.scales = MultilevelNeck(widths, norm=config.neck == "multilevel_norm")
            strides = tuple(stride / scale for stride, scale in zip(strides, self.scales.scales, strict=True))
        self.level_strides = strides

    def levels(self, stages: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The maps that the pyramid reads."""
        return stages if self.scales is None else tuple(self.scales(stages))

    def anchors(self, maps: tuple[Tensor, ...]) -> Tensor:
        """Of all levels, (A, 4)."""
        grids = tuple((x.shape[2], x.shape[3]) for x in maps)
        return grid_anchors(grids, self.strides, self.sizes, self.config.ratios, maps[0].device)

    def counts(self, maps: tuple[Tensor, ...]) -> list[int]:
        """Anchors of each level."""
        return [x.shape[2] * x.shape[3] * len(self.sizes) * len(self.config.ratios) for x in maps]

    def find(self, out: Output, extent: Tensor | None = None) -> Detections:
        """Objects of a batch. extent: (B, 4) part of each input that shows the image; None: all of it."""
        raise NotImplementedError

    def region_heads(self) -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
        """Networks that read regions of the pyramid, by name, each with the shape of a region (D, s, s)."""
        return {}

    def answer(self, x: Tensor, extent: Tensor | None = None) -> Output:
        """What the network says of a batch, with the objects that follow. x: (B, C, H, W)."""
        out: Output = self(x)
        whole = x.new_tensor([0, 0, x.shape[3], x.shape[2]], dtype=torch.float32).expand(len(x), 4)
        return replace(out, found=self.find(out, whole if extent is None else extent))


def choose(boxes: Tensor, scores: Tensor, config: DetectorConfig) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The surest boxes of an image: edges (n, 4), scores, classes, and rows among the N, (n,) each.

    boxes: (N, 4), or (N, K, 4) of each class; scores: (N, K).
    """
    row, label = (scores > config.least).nonzero().unbind(1)
    sure = scores[row, label]
    edges = boxes[row] if boxes.ndim == 2 else boxes[row, label]
    kept = survivors(edges, sure, config.overlap, label).nonzero()[:, 0]
    kept = kept[sure[kept].argsort(descending=True, stable=True)[: config.most]]
    return edges[kept], sure[kept], label[kept], row[kept]


def stacked(found: list[tuple[Tensor, Tensor, Tensor, Tensor]], most: int) -> Detections:
    """Objects of images that have different numbers of them."""
    boxes, scores, labels = [], [], []
    for edges, sure, label, _ in found:
        room = most - len(sure)
        boxes.append(nn.functional.pad(edges, (0, 0, 0, room)))
        scores.append(nn.functional.pad(sure, (0, room)))
        labels.append(nn.functional.pad(label, (0, room)))
    return Detections(torch.stack(boxes), torch.stack(scores), torch.stack(labels))


def start_narrow(layers: nn.Module, deviation: float = 0.01) -> None:
    """Convolutions and linear layers from a narrow normal, biases at zero, as detectors start them."""
    for layer in layers.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.normal_(layer.weight, std=deviation)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
