"""Mask R-CNN (He et al., 2017), Cascade Mask R-CNN (Cai and Vasconcelos, 2018): proposals, then a closer look.

As mmdetection has them; a Mask R-CNN is a cascade of one step. B batch | D channels | A anchors | K classes | R regions
of an image | N regions of a batch | S steps of the cascade
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.batch import Mix
from tilework.core.errors import ConfigError
from tilework.layers.boxes import Deviations, clip, decode
from tilework.layers.conv_norm import ConvNorm, Norm
from tilework.layers.fpn import Fpn
from tilework.layers.nms import survivors
from tilework.layers.roi_align import read_pyramid
from tilework.models.detector import Detector, DetectorConfig, choose, stacked, start_narrow
from tilework.models.model import Detections, Model, ModelConfig, Output, Visible
from tilework.models.retinanet import flat


@dataclass(frozen=True)
class Proposals:
    """How many regions are looked at."""

    of_level: int = 1000  # the surest anchors of each level
    overlap: float = 0.7  # of two of a level, above which the less sure one is dropped
    most: int = 1000  # of an image


@ModelConfig.choices.add("mask_rcnn")
@dataclass(frozen=True)
class MaskRcnnConfig(DetectorConfig):
    """Settings of Mask R-CNN around a backbone."""

    size: float = 8.0  # of anchors, in strides
    hidden: int = 1024  # width of the box head
    head: Literal["2fc", "4conv1fc"] = "2fc"  # of boxes: linear layers, or normed convolutions and one
    norm: Norm = "batch"  # of those convolutions
    deviations: tuple[Deviations, ...] = ((0.1, 0.1, 0.2, 0.2),)  # of offsets, for each step
    masks: bool = True  # outlines as well; False: Faster R-CNN
    box_side: int = 7  # of what is read of a region
    mask_side: int = 14
    proposals: Proposals = Proposals()  # when it is evaluated

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> Rcnn:
        """The network for an input of `channels` on `grid`."""
        return Rcnn(self, self.build_backbone(channels, grid), classes)


@ModelConfig.choices.add("cascade_mask_rcnn")
@dataclass(frozen=True)
class CascadeMaskRcnnConfig(MaskRcnnConfig):
    """Settings of Cascade Mask R-CNN around a backbone: three steps, each with heads of its own."""

    head: Literal["2fc", "4conv1fc"] = "4conv1fc"
    deviations: tuple[Deviations, ...] = (
        (0.1, 0.1, 0.2, 0.2),
        (0.05, 0.05, 0.1, 0.1),
        (0.033, 0.033, 0.067, 0.067),
    )


class RpnHead(nn.Module):
    """Whether an anchor shows any object, and where."""

    def __init__(self, width: int, anchors: int) -> None:
        super().__init__()
        self.rpn_conv = nn.Conv2d(width, width, 3, padding=1)
        self.rpn_cls = nn.Conv2d(width, anchors, 1)
        self.rpn_reg = nn.Conv2d(width, anchors * 4, 1)
        start_narrow(self)

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Logits (B, A, 1) and offsets (B, A, 4) of all levels."""
        hidden = [F.relu(self.rpn_conv(x)) for x in maps]
        logits = torch.cat([flat(self.rpn_cls(x), 1) for x in hidden], 1)
        return logits, torch.cat([flat(self.rpn_reg(x), 4) for x in hidden], 1)


class BoxHead(nn.Module):
    """Class and box of a region; the last class is none."""

    def __init__(self, config: MaskRcnnConfig, classes: int) -> None:
        super().__init__()
        if config.head not in ("2fc", "4conv1fc"):
            raise ConfigError(f"no box head '{config.head}'", "give 2fc or 4conv1fc")
        width, self.classes = config.channels, classes
        convs = [ConvNorm(width, width, 3, config.norm) for _ in range(4)] if config.head == "4conv1fc" else []
        self.shared_convs = nn.Sequential(*convs)
        widths = [width * config.box_side**2, *[config.hidden] * (1 if convs else 2)]
        self.shared_fcs = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        self.fc_cls = nn.Linear(config.hidden, classes + 1)
        self.fc_reg = nn.Linear(config.hidden, 4 * classes)
        for layer in self.shared_fcs:
            nn.init.xavier_uniform_(layer.get_parameter("weight"))
            nn.init.zeros_(layer.get_parameter("bias"))
        start_narrow(self.fc_cls)
        start_narrow(self.fc_reg, 0.001)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (N, K + 1) and offsets of every class (N, K, 4). x: (N, D, 7, 7)."""
        x = self.shared_convs(x).flatten(1)
        for layer in self.shared_fcs:
            x = F.relu(layer(x))
        return self.fc_cls(x), self.fc_reg(x).unflatten(1, (self.classes, 4))


class MaskHead(nn.Module):
    """The outline of every class in a region."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(4))
        self.upsample = nn.ConvTranspose2d(width, width, 2, stride=2)
        self.conv_logits = nn.Conv2d(width, classes, 1)
        for layer in (*self.convs, self.upsample, self.conv_logits):
            nn.init.kaiming_normal_(layer.get_parameter("weight"), mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(layer.get_parameter("bias"))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, K, 2 s, 2 s). x: (N, D, s, s)."""
        for conv in self.convs:
            x = F.relu(conv(x))
        return self.conv_logits(F.relu(self.upsample(x)))


class Rcnn(Detector):
    """Proposals of a region proposal network, refined and classified in one step or several."""

    config: MaskRcnnConfig

    def __init__(self, config: MaskRcnnConfig, backbone: Model, classes: int) -> None:
        super().__init__(config, backbone, classes)
        self.neck = Fpn(backbone.stage_widths, config.channels, 1, "pool")
        self.strides = (*self.level_strides, 2 * self.level_strides[-1])
        self.sizes = (config.size,)
        self.rpn = RpnHead(config.channels, len(config.ratios))
        self.box_heads = nn.ModuleList(BoxHead(config, classes) for _ in config.deviations)
        self.mask_heads = nn.ModuleList(
            MaskHead(config.channels, classes) for _ in (config.deviations if config.masks else ())
        )

    def _forward(self, x: Tensor, mix: Mix | None, visible: Visible | None, track: bool, stages: bool) -> Output:
        """See `Model.forward`; stages are the levels of the pyramid, logits and offsets those of proposals."""
        stem, tokens, grid, maps = self.read(x, mix, visible, track)
        levels = self.neck(self.levels(maps))
        logits, offsets = self.rpn(levels)
        return Output(logits, tokens, stem, grid, stages=levels, offsets=offsets)

    def region_heads(self) -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
        """Of boxes and of outlines, for each step of the cascade."""
        kinds = {"boxes": (self.box_heads, self.config.box_side), "masks": (self.mask_heads, self.config.mask_side)}
        return {
            f"{kind}-{step}": (head, (self.config.channels, side, side))
            for kind, (heads, side) in kinds.items()
            for step, head in enumerate(heads)
        }

    @torch.no_grad()
    def propose(self, out: Output, extent: Tensor, how: Proposals) -> tuple[Tensor, Tensor]:
        """Regions of each image, (B, R, 4), and whether there is one, (B, R)."""
        assert out.offsets is not None
        anchors, counts = self.anchors(out.stages), self.counts(out.stages)
        regions, known = [], []
        for logits, offsets, shown in zip(out.logits[..., 0].float(), out.offsets, extent, strict=True):
            rows, level, start = [], [], 0
            for number, part in enumerate(logits.split(counts)):
                best = part.topk(min(how.of_level, len(part))).indices
                rows.append(best + start)
                level.append(torch.full_like(best, number))
                start += len(part)
            row = torch.cat(rows)
            boxes, scores = clip(decode(anchors[row], offsets[row]), shown), logits[row].sigmoid()
            sound = (boxes[:, 2:] > boxes[:, :2]).all(1)
            scores = torch.where(sound, scores, 0)
            kept = survivors(boxes, scores, how.overlap, torch.cat(level)) & sound
            best = torch.where(kept, scores, -1).topk(min(how.most, len(scores))).indices
            room = how.most - len(best)
            regions.append(F.pad(boxes[best], (0, 0, 0, room)))
            known.append(F.pad(kept[best], (0, room)))
        return torch.stack(regions), torch.stack(known)

    def features(self, out: Output, regions: Tensor, sample: Tensor, side: int) -> Tensor:
        """What lies in regions, (N, D, s, s). regions: (N, 4); sample: (N,) whose they are."""
        return read_pyramid(out.stages[:-1], self.strides[:-1], regions, sample, side)

    def look(self, out: Output, regions: Tensor, sample: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Logits (N, K + 1) and offsets (N, K, 4) of regions by a step of the cascade."""
        found: tuple[Tensor, Tensor] = self.box_heads[step](self.features(out, regions, sample, self.config.box_side))
        return found

    def outline(self, out: Output, regions: Tensor, sample: Tensor, step: int) -> Tensor:
        """Logits of outlines, (N, K, 28, 28)."""
        found: Tensor = self.mask_heads[step](self.features(out, regions, sample, self.config.mask_side))
        return found

    def refine(self, regions: Tensor, offsets: Tensor, label: Tensor, step: int, extent: Tensor) -> Tensor:
        """Regions moved as a class of theirs says, (N, 4). offsets: (N, K, 4); label: (N,); extent: (N, 4)."""
        own = offsets[torch.arange(len(label), device=label.device), label]
        return clip(decode(regions, own, self.config.deviations[step]), extent)

    @torch.no_grad()
    def find(self, out: Output, extent: Tensor | None = None) -> Detections:
        """Regions looked at step by step; scores and outlines are means over the steps."""
        assert extent is not None
        config, steps = self.config, len(self.box_heads)
        regions, known = self.propose(out, extent, config.proposals)
        sample = torch.arange(len(regions), device=regions.device)[:, None].expand_as(known)[known]
        regions, logits = regions[known], torch.zeros((), device=regions.device)
        offsets = regions
        for step in range(steps):
            each, offsets = self.look(out, regions, sample, step)
            logits = logits + each.float() / steps
            if step < steps - 1:
                label = each[:, :-1].argmax(1)
                regions = self.refine(regions, offsets, label, step, extent[sample])
        boxes = clip(decode(regions[:, None], offsets, config.deviations[-1]), extent[sample][:, None])  # (N, K, 4)
        scores = logits.softmax(-1)[:, :-1]
        found = [choose(boxes[sample == i], scores[sample == i], config) for i in range(len(extent))]
        objects = stacked(found, config.most)
        return self._outlined(out, objects) if config.masks else objects

    def _outlined(self, out: Output, objects: Detections) -> Detections:
        """The same with the outlines of their classes."""
        there = objects.scores > 0
        sample, row = there.nonzero().unbind(1)
        boxes, label = objects.boxes[there], objects.labels[there]
        number = torch.arange(len(label), device=label.device)
        side = 2 * self.config.mask_side
        masks = torch.zeros(*there.shape, side, side, device=boxes.device)
        total = torch.stack(
            [self.outline(out, boxes, sample, i)[number, label].sigmoid() for i in range(len(self.mask_heads))]
        )
        masks[sample, row] = total.float().mean(0)
        return replace(objects, masks=masks)
