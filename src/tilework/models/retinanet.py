"""RetinaNet: classes and boxes of dense anchors by two small towers, shared over levels (Lin et al., 2017).

As mmdetection has it. B batch | D channels | h, w grid of a level | A anchors | K classes
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor, nn

from tilework.core.batch import Mix
from tilework.core.errors import ConfigError
from tilework.layers.boxes import clip, decode
from tilework.layers.fpn import Fpn
from tilework.models.detector import Detector, DetectorConfig, choose, stacked, start_narrow
from tilework.models.model import Detections, Model, ModelConfig, Output, Visible


@ModelConfig.choices.add("retinanet")
@dataclass(frozen=True)
class RetinanetConfig(DetectorConfig):
    """Settings of RetinaNet around a backbone."""

    stages: int = 3  # that the pyramid reads, the last ones
    levels: int = 5  # of the pyramid; those beyond the stages are made of the last one
    convs: int = 4  # of each tower
    size: float = 4.0  # of the smallest anchors, in strides
    octaves: int = 3  # sizes of a level
    candidates: int = 1000  # of a level, before overlaps are looked at
    prior: float = 0.01  # probability that an anchor is an object, at the start

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> Retinanet:
        """The network for an input of `channels` on `grid`."""
        return Retinanet(self, self.build_backbone(channels, grid), classes)


class RetinaHead(nn.Module):
    """Two towers of convolutions on each level."""

    def __init__(self, config: RetinanetConfig, anchors: int, classes: int) -> None:
        super().__init__()
        width = config.channels
        self.cls_convs, self.reg_convs = (
            nn.Sequential(
                *(nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU()) for _ in range(config.convs))
            )
            for _ in range(2)
        )
        self.retina_cls = nn.Conv2d(width, anchors * classes, 3, padding=1)
        self.retina_reg = nn.Conv2d(width, anchors * 4, 3, padding=1)
        start_narrow(self)
        nn.init.constant_(self.retina_cls.get_parameter("bias"), -log((1 - config.prior) / config.prior))
        self.classes = classes

    def forward(self, maps: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Logits (B, A, K) and offsets (B, A, 4) of all levels. maps: (B, D, h, w) each."""
        logits = [flat(self.retina_cls(self.cls_convs(x)), self.classes) for x in maps]
        offsets = [flat(self.retina_reg(self.reg_convs(x)), 4) for x in maps]
        return torch.cat(logits, 1), torch.cat(offsets, 1)


def flat(x: Tensor, values: int) -> Tensor:
    """Channels of a level by anchor, (B, h w A, values). x: (B, A values, h, w)."""
    return x.permute(0, 2, 3, 1).reshape(len(x), -1, values)


class Retinanet(Detector):
    """RetinaNet around a backbone."""

    config: RetinanetConfig

    def __init__(self, config: RetinanetConfig, backbone: Model, classes: int) -> None:
        super().__init__(config, backbone, classes)
        first, extra = len(backbone.stage_widths) - config.stages, config.levels - config.stages
        if first < 0 or extra < 0:
            what = (
                f"{config.levels} levels of {config.stages} stages, and the backbone has {len(backbone.stage_widths)}"
            )
            raise ConfigError(what, "give model.stages at most as many as it has, and model.levels at least as many")
        for stage in range(first):  # norms that nothing reads would stop DistributedDataParallel
            self.stage_norms[stage] = nn.Identity()
        self.neck = Fpn(backbone.stage_widths[first:], config.channels, extra, "conv")
        last = self.level_strides[-1]
        self.strides = (*self.level_strides[first:], *(last * 2 ** (i + 1) for i in range(extra)))
        self.sizes = tuple(config.size * 2 ** (i / config.octaves) for i in range(config.octaves))
        self.decoder = RetinaHead(config, len(self.sizes) * len(config.ratios), classes)

    def _forward(self, x: Tensor, mix: Mix | None, visible: Visible | None, track: bool, stages: bool) -> Output:
        """See `Model.forward`; stages are the levels of the pyramid."""
        stem, tokens, grid, maps = self.read(x, mix, visible, track)
        levels = self.neck(self.levels(maps)[-self.config.stages :])
        logits, offsets = self.decoder(levels)
        return Output(logits, tokens, stem, grid, stages=levels, offsets=offsets)

    @torch.no_grad()
    def find(self, out: Output, extent: Tensor | None = None) -> Detections:
        """Of each level the surest anchors, decoded; then those that no surer one of their class covers."""
        assert out.offsets is not None
        assert extent is not None
        anchors, counts = self.anchors(out.stages), self.counts(out.stages)
        found = []
        for logits, offsets, shown in zip(out.logits.float().sigmoid(), out.offsets, extent, strict=True):
            boxes, scores = [], []
            for level, off, at in zip(logits.split(counts), offsets.split(counts), anchors.split(counts), strict=True):
                best = level.flatten().topk(min(self.config.candidates, level.numel())).indices  # anchor and class
                kept = torch.zeros_like(level).flatten().index_fill(0, best, 1).view_as(level)
                row = (best // level.shape[1]).unique()
                boxes.append(clip(decode(at[row], off[row]), shown))
                scores.append((level * kept)[row])
            edges, sure = torch.cat(boxes), torch.cat(scores)
            sound = (edges[:, 2:] > edges[:, :2]).all(1)
            found.append(choose(edges[sound], sure[sound], self.config))
        return stacked(found, self.config.most)
