"""UPerNet: pyramid pooling on the coarsest stage, a feature pyramid over the others, all joined (Xiao et al., 2018).

As mmsegmentation has it. B batch | D_i, h_i, w_i width and grid of a stage | D channels of the head | K classes
s upscale
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from tilework.layers.conv_norm import ConvNorm, Norm, resized
from tilework.layers.necks import MultilevelNeck, NeckName
from tilework.layers.pyramid_pooling import PyramidPooling
from tilework.models.dense import ClassLayer, DenseConfig, DenseModel
from tilework.models.model import Model, ModelConfig


@ModelConfig.choices.add("upernet")
@dataclass(frozen=True)
class UpernetConfig(DenseConfig):
    """Settings of UPerNet around a backbone."""

    channels: int = 512
    pools: tuple[int, ...] = (1, 2, 3, 6)
    neck: NeckName = "none"  # for networks without stages: all maps at one stride, or at four
    norm: Norm = "batch"
    dropout: float = 0.1  # of whole channels, before the last convolution

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> Upernet:
        """The network for an input of `channels` on `grid`."""
        return Upernet(self, self.build_backbone(channels, grid), classes)

    def for_tokens(self) -> UpernetConfig:
        """The same with the backbone's stem for code maps."""
        return replace(self, backbone=self.backbone.for_tokens())


class UpernetHead(nn.Module):
    """Maps of all stages to logits on the grid of the finest."""

    def __init__(self, widths: tuple[int, ...], config: UpernetConfig, classes: int) -> None:
        super().__init__()
        width, norm = config.channels, config.norm
        self.pooling = PyramidPooling(widths[-1], width, config.pools, norm)
        self.laterals = nn.ModuleList(ConvNorm(one, width, 1, norm) for one in widths[:-1])
        self.smooth = nn.ModuleList(ConvNorm(width, width, 3, norm) for _ in widths[:-1])
        self.join = ConvNorm(len(widths) * width, width, 3, norm)
        self.dropout = nn.Dropout2d(config.dropout)
        self.classify = ClassLayer(width, classes, config.upscale)

    def forward(self, stages: tuple[Tensor, ...]) -> Tensor:
        """Stages: (B, D_i, h_i, w_i), fine to coarse; returns (B, K, s h_0, s w_0)."""
        maps = [lateral(x) for lateral, x in zip(self.laterals, stages, strict=False)]
        maps.append(self.pooling(stages[-1]))
        for i in range(len(maps) - 1, 0, -1):
            finer = maps[i - 1]
            maps[i - 1] = finer + resized(maps[i], (finer.shape[2], finer.shape[3]))
        smooth = [conv(x) for conv, x in zip(self.smooth, maps, strict=False)] + maps[-1:]
        grid = (smooth[0].shape[2], smooth[0].shape[3])
        return self.classify(self.dropout(self.join(torch.cat([resized(x, grid) for x in smooth], 1))))


class Upernet(DenseModel):
    """UPerNet around a backbone."""

    def __init__(self, config: UpernetConfig, backbone: Model, classes: int) -> None:
        super().__init__(backbone, classes)
        self.config = config
        last = config.neck == "multilevel_norm"
        self.neck = None if config.neck == "none" else MultilevelNeck(backbone.stage_widths, norm=last)
        self.decoder = UpernetHead(backbone.stage_widths, config, classes)

    def decode(self, stages: tuple[Tensor, ...]) -> Tensor:
        """Logits of every part of every position of the finest map, (B, K, s h, s w)."""
        return self.decoder(stages if self.neck is None else tuple(self.neck(stages)))
