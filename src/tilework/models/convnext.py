"""ConvNeXt for pixels and for tokens: depthwise 7x7 convolutions between MLPs, in four stages (Liu et al., 2022).

B batch | h, w grid of a stage | N = h w | D width of a stage | S sources. Parameter names are those of the published
checkpoints, but for the stem, which is the first of the `downsample_layers` there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.batch import Mix
from tilework.core.bounds import check_below_one
from tilework.core.errors import ConfigError
from tilework.layers.residual import add_branch
from tilework.layers.shares import convolve_shares, pool_shares
from tilework.layers.stem_moto import ChannelNorm
from tilework.layers.stems import PatchStemConfig, Stem, StemConfig, TokenFineStemConfig
from tilework.models.model import Model, ModelConfig, Output, Visible, halved, initial_share, start_small


@ModelConfig.choices.add("convnext")
@dataclass(frozen=True)
class ConvnextConfig(ModelConfig):
    """Settings of a ConvNeXt; one number for each stage."""

    widths: tuple[int, ...] = (96, 192, 384, 768)
    depths: tuple[int, ...] = (3, 3, 9, 3)
    drop_path: float = 0.0  # of the last block; rises linearly from zero
    scale: float = 1e-6  # of the branches, at the start
    stem: StemConfig = field(default_factory=lambda: PatchStemConfig(4))

    def __post_init__(self) -> None:
        check_below_one(self, "drop_path")

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> Convnext:
        """The network for an input of `channels` on `grid`."""
        if len(self.widths) != len(self.depths):
            raise ConfigError(f"{len(self.depths)} stages have {len(self.widths)} widths", "set model.widths for each")
        return Convnext(self, self.stem.build(channels, grid, self.widths[0]), classes)

    def for_tokens(self) -> ConvnextConfig:
        """The same network with two by two tokens for each code."""
        return replace(self, stem=TokenFineStemConfig())


class ConvnextBlock(nn.Module):
    """A depthwise convolution and an MLP on one residual branch with a learnt scale for each channel."""

    def __init__(self, width: int, scale: float, drop_path: float) -> None:
        super().__init__()
        self.drop_path = drop_path
        self.gamma = nn.Parameter(torch.full((width,), scale))
        self.dwconv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pwconv1 = nn.Linear(width, 4 * width)
        self.pwconv2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, share: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """x: (B, D, h, w); share: (B, N, S) or None."""
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))  # (B, h, w, D)
        y = self.gamma * self.pwconv2(F.gelu(self.pwconv1(y)))
        mixed = None if share is None else convolve_shares(share, (x.shape[2], x.shape[3]), self.dwconv.weight)
        return add_branch(x, y.permute(0, 3, 1, 2), self.drop_path if self.training else 0.0, share, mixed)


class Convnext(Model):
    """Four stages of convolutions; the head reads the normed mean of the last map."""

    stem_names = ("stem.",)
    head_names = ("head.",)

    def __init__(self, config: ConvnextConfig, stem: Stem, classes: int) -> None:
        super().__init__()
        self.config = config
        self.takes = stem.takes
        self.stem = stem
        self.stem.add_module("norm", ChannelNorm(config.widths[0], eps=1e-6))
        self.grid = stem.grid
        self.stage_widths = config.widths
        self.stage_strides = tuple(stem.stride * 2**i for i in range(len(config.widths)))
        rates = iter(torch.linspace(0, config.drop_path, sum(config.depths), device="cpu").tolist())
        self.downsample_layers = nn.ModuleList([nn.Identity()])  # before the first stage there is the stem
        self.stages = nn.ModuleList()
        for i, (width, depth) in enumerate(zip(config.widths, config.depths, strict=True)):
            if i:
                self.grid = halved(self.grid)
                before = config.widths[i - 1]
                halve = nn.Sequential(ChannelNorm(before, eps=1e-6), nn.Conv2d(before, width, 2, stride=2))
                self.downsample_layers.append(halve)
            self.stages.append(nn.ModuleList(ConvnextBlock(width, config.scale, next(rates)) for _ in range(depth)))
        self.norm = nn.LayerNorm(config.widths[-1], eps=1e-6)
        self.head = nn.Linear(config.widths[-1], classes) if classes else nn.Identity()
        start_small(self, nn.Linear | nn.Conv2d)

    def _forward(self, x: Tensor, mix: Mix | None, visible: Visible | None, track: bool, stages: bool) -> Output:
        """See `Model.forward`; no token can be left out."""
        if visible is not None:
            raise ConfigError("a ConvNeXt cannot leave tokens out", "convolutions need whole maps: use a ViT")
        grid = self.stem.token_grid(x)
        stem = self.stem(x)  # (B, D, h, w)
        mixed = mix.apply(stem) if mix is not None and mix.after_stem else stem
        features = self.stem.get_submodule("norm")(mixed)
        share = initial_share(mix, len(x), grid, x.device) if track else None  # (B, N, 2)
        given = []
        for halve, blocks in zip(self.downsample_layers, self.stages, strict=True):
            if halve is not self.downsample_layers[0]:
                share = None if share is None else pool_shares(share, grid, kernel=2, stride=2)
                grid = halved(grid)
            features = halve(features)
            for block in blocks.children():
                features, share = block(features, share)
            if stages:
                given.append(features)
        tokens = features.flatten(2).transpose(1, 2)  # (B, N, D)
        share = None if share is None else share.mean(1)
        logits = self.head(self.norm(tokens.mean(1)))
        return Output(logits, tokens, stem, grid, share=share, stages=tuple(given))

    def token_logits(self, out: Output) -> Tensor:
        """What norm and head say of each position, (B, N, K)."""
        return self.head(self.norm(out.tokens))

    def translate(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Names of the published checkpoints and of timm's."""
        found = {}
        for name, tensor in tensors.items():
            name = re.sub(r"^(downsample_layers\.0|stem)\.0\.", "stem.proj.", name)
            name = re.sub(r"^(downsample_layers\.0|stem)\.1\.", "stem.norm.", name)
            name = re.sub(r"^stages\.(\d+)\.downsample\.", r"downsample_layers.\1.", name)
            name = re.sub(r"^(stages\.\d+)\.blocks\.", r"\1.", name)
            name = name.replace(".conv_dw.", ".dwconv.").replace(".mlp.fc", ".pwconv")
            found[re.sub(r"^head\.(norm\.|fc\.)", lambda m: "head." if m[1] == "fc." else m[1], name)] = tensor
        return found

    def layer_of(self, name: str) -> int:
        """0: stem; then one for each block, the first of a stage with what makes the grid coarser; last: head."""
        if name.startswith(self.stem_names):
            return 0
        if name.startswith(("norm.", "head.")):
            return self.layers - 1
        kind, stage, block = name.split(".")[:3]
        return sum(self.config.depths[: int(stage)]) + (int(block) if kind == "stages" else 0) + 1

    @property
    def layers(self) -> int:
        """Stem, blocks, head."""
        return sum(self.config.depths) + 2
