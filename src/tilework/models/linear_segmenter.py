"""A linear head on the last stage: every position classified by itself (the probe of DINOv2; Strudel et al., 2021).

B batch | D width of the last stage | K classes | h, w its grid | s upscale
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn

from tilework.layers.conv_norm import Norm
from tilework.models.dense import ClassLayer, DenseConfig, DenseModel
from tilework.models.model import Model, ModelConfig


@ModelConfig.choices.add("linear_segmenter")
@dataclass(frozen=True)
class LinearSegmenterConfig(DenseConfig):
    """Settings of a linear head on a backbone."""

    norm: Norm = "batch"
    dropout: float = 0.1

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> LinearSegmenter:
        """The network for an input of `channels` on `grid`."""
        return LinearSegmenter(self, self.build_backbone(channels, grid), classes)

    def for_tokens(self) -> LinearSegmenterConfig:
        """The same with the backbone's stem for code maps."""
        return replace(self, backbone=self.backbone.for_tokens())


class LinearSegmenter(DenseModel):
    """Norm, dropout and a 1x1 convolution."""

    def __init__(self, config: LinearSegmenterConfig, backbone: Model, classes: int) -> None:
        super().__init__(backbone, classes)
        self.config = config
        width = backbone.stage_widths[-1]
        norm = nn.BatchNorm2d(width) if config.norm == "batch" else nn.GroupNorm(1, width)
        self.decoder = nn.Sequential(norm, nn.Dropout2d(config.dropout), ClassLayer(width, classes, config.upscale))
        self.stage_norms = nn.ModuleList([nn.Identity()] * len(backbone.stage_widths))  # the head has its own

    def decode(self, stages: tuple[Tensor, ...]) -> Tensor:
        """Logits of every part of every position of the last map, (B, K, s h, s w)."""
        return self.decoder(stages[-1])
