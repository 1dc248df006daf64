"""ResNet-18 and -50 for pixels and for tokens (He et al., 2016; v1.5: the 3x3 convolution of a bottleneck strides).

B batch | H, W input grid | D width | h, w token grid | N = h w. Parameter names are torchvision's and timm's, so their
checkpoints load.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.batch import Mix
from tilework.core.errors import ConfigError
from tilework.models.model import Model, ModelConfig, Output, Visible


@ModelConfig.choices.add("resnet")
@dataclass(frozen=True)
class ResnetConfig(ModelConfig):
    """Settings of a ResNet."""

    depth: Literal[18, 50] = 50
    width: int = 64  # after the stem; doubles with each stage but the first
    stem: Literal["image", "token"] = "image"

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> Resnet:
        """The network for an input of `channels` on `grid`."""
        if self.depth not in LAYOUTS:
            raise ConfigError(f"no ResNet of depth {self.depth!r}", "set model.depth to 18 or 50")
        if self.stem not in ("image", "token"):
            raise ConfigError(f"no ResNet with stem {self.stem!r}", "set model.stem to 'image' or 'token'")
        return Resnet(self, channels, grid, classes)

    def for_tokens(self) -> ResnetConfig:
        """The same network with a stem that keeps the code grid."""
        return replace(self, stem="token")


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:  # (B, inputs, h, w)
        """Returns (B, width, h / stride, w / stride)."""
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two of 1x1, beside a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = shortcut(inputs, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:  # (B, inputs, h, w)
        """Returns (B, 4 width, h / stride, w / stride)."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


LAYOUTS: dict[int, tuple[type[BasicBlock | Bottleneck], tuple[int, ...]]] = {  # block, and how many in each stage
    18: (BasicBlock, (2, 2, 2, 2)),
    50: (Bottleneck, (3, 4, 6, 3)),
}


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """The identity where shapes allow it, else a strided 1x1 convolution."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class Resnet(Model):
    """Four stages of residual blocks; the head reads the mean of the last map."""

    tracks = False
    stem_names = ("conv1.", "bn1.")
    head_names = ("fc.",)

    def __init__(self, config: ResnetConfig, channels: int, grid: tuple[int, int], classes: int) -> None:
        super().__init__()
        self.config = config
        block, self.blocks = LAYOUTS[config.depth]
        width = config.width
        if config.stem == "image":
            self.takes = "pixels"
            self.conv1 = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
            self.maxpool: nn.Module = nn.MaxPool2d(3, stride=2, padding=1)
        else:  # our choice (SeiT does not say): layer1 works on the code grid as it is
            self.takes = "map"
            self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
            self.maxpool = nn.Identity()
        self.bn1 = nn.BatchNorm2d(width)
        inputs = width
        for i, count in enumerate(self.blocks):
            stage = nn.Sequential()
            for j in range(count):
                stage.append(block(inputs, width << i, stride=2 if i and not j else 1))
                inputs = (width << i) * block.expansion
            self.add_module(f"layer{i + 1}", stage)
        self.fc = nn.Linear(inputs, classes) if classes else nn.Identity()
        self.stage_widths = tuple((width << i) * block.expansion for i in range(4))
        self.stage_strides = (4, 8, 16, 32) if config.stem == "image" else (1, 2, 4, 8)
        stride = self.stage_strides[-1]
        self.grid = (-(-grid[0] // stride), -(-grid[1] // stride))
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def _forward(self, x: Tensor, mix: Mix | None, visible: Visible | None, track: bool, stages: bool) -> Output:
        """See `Model.forward`; `stem` is the map that layer1 takes. No token can be left out or followed."""
        if visible is not None:
            raise ConfigError("a ResNet cannot leave tokens out", "convolutions need whole maps: use a ViT")
        if track:
            raise ConfigError("a ResNet cannot follow the sources of a mixture", "it has no attention: use a ViT")
        if self.config.width < 16:  # oneDNN's strided 1x1 convolutions write past their buffer, channels last
            x = x.contiguous()
        stem = self.maxpool(F.relu(self.bn1(self.conv1(x))))  # (B, 64, H/4, W/4), or (B, 64, H, W) of tokens
        features = mix.apply(stem) if mix is not None and mix.after_stem else stem
        given = []
        for i in range(4):
            features = self.get_submodule(f"layer{i + 1}")(features)
            if stages:
                given.append(features)
        tokens = features.flatten(2).transpose(1, 2)  # (B, N, D)
        grid = (features.shape[2], features.shape[3])
        return Output(self.fc(tokens.mean(1)), tokens, stem, grid, stages=tuple(given))

    def token_logits(self, out: Output) -> Tensor:
        """What the head says of each position, (B, N, K); their mean is what it says of the image."""
        return self.fc(out.tokens)

    def layer_of(self, name: str) -> int:
        """0: stem; then one for each block; last: head."""
        if name.startswith(self.stem_names):
            return 0
        if name.startswith(self.head_names):
            return self.layers - 1
        stage, block = name.removeprefix("layer").split(".")[:2]
        return 1 + sum(self.blocks[: int(stage) - 1]) + int(block)

    @property
    def layers(self) -> int:
        """Stem, blocks, head."""
        return sum(self.blocks) + 2
