"""PVTv2 for pixels and for tokens: overlapping patches, keys of a coarser grid, no positions (Wang et al., 2022).

B batch | h, w grid of a stage | N = h w | D width of a stage | S sources. Parameter names are the published ones.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.batch import Mix
from tilework.core.bounds import check_below_one
from tilework.core.errors import ConfigError
from tilework.layers.block import Block
from tilework.layers.residual import add_branch
from tilework.layers.shares import convolve_shares, pool_shares
from tilework.layers.spatial_reduction import SpatialReductionAttention
from tilework.layers.stems import OverlapStem, OverlapStemConfig, Stem, StemConfig, TokenFineStemConfig, patch_grid
from tilework.models.model import Model, ModelConfig, Output, Visible, initial_share, start_small, stem_of


@ModelConfig.choices.add("pvt_v2")
@dataclass(frozen=True)
class PvtV2Config(ModelConfig):
    """Settings of a PVTv2; one number for each stage."""

    widths: tuple[int, ...] = (64, 128, 320, 512)
    depths: tuple[int, ...] = (3, 4, 6, 3)
    heads: tuple[int, ...] = (1, 2, 5, 8)
    mlp_ratios: tuple[int, ...] = (8, 8, 4, 4)
    reductions: tuple[int, ...] = (8, 4, 2, 1)  # side of the window that makes a key
    drop_path: float = 0.0  # of the last block; rises linearly from zero
    stem: StemConfig = field(default_factory=OverlapStemConfig)

    def __post_init__(self) -> None:
        check_below_one(self, "drop_path")

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> PvtV2:
        """The network for an input of `channels` on `grid`."""
        if len({len(self.widths), len(self.depths), len(self.heads), len(self.mlp_ratios), len(self.reductions)}) > 1:
            raise ConfigError("the settings of a PVTv2 are for different numbers of stages", "give each as many")
        return PvtV2(self, self.stem.build(channels, grid, self.widths[0]), classes)

    def for_tokens(self) -> PvtV2Config:
        """The same network with two by two tokens for each code."""
        return replace(self, stem=TokenFineStemConfig())


class ConvMlp(nn.Module):
    """An MLP with a depthwise 3x3 convolution between its layers, which tells positions apart: it mixes labels too."""

    def __init__(self, width: int, hidden: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.grid = grid
        self.fc1 = nn.Linear(width, hidden)
        conv = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)
        self.dwconv = nn.Sequential(OrderedDict(dwconv=conv))
        self.fc2 = nn.Linear(hidden, width)

    def forward(
        self, x: Tensor, share: Tensor | None = None, grid: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """x: (B, N, D); share: (B, N, S) or None; grid: of the tokens, where not the one built for."""
        grid = grid or self.grid
        y = self.dwconv(self.fc1(x).transpose(1, 2).unflatten(2, grid))  # (B, hidden, h, w)
        y = self.fc2(F.gelu(y.flatten(2).transpose(1, 2)))
        if share is not None:
            share = convolve_shares(share, grid, self.dwconv.get_parameter("dwconv.weight"))
        return y, share


class PvtV2Block(Block):
    """A block both of whose branches mix positions, and average the shares with what they were."""

    def __init__(self, config: PvtV2Config, stage: int, grid: tuple[int, int], drop_path: float) -> None:
        width, heads = config.widths[stage], config.heads[stage]
        super().__init__(width, heads, drop_path=drop_path)
        self.add_module("attn", SpatialReductionAttention(width, heads, grid, config.reductions[stage]))
        self.add_module("mlp", ConvMlp(width, width * config.mlp_ratios[stage], grid))

    def forward(
        self, x: Tensor, share: Tensor | None = None, grid: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """x: (B, N, D); share: (B, N, S) or None; grid: of the tokens, where not the one built for."""
        for norm, branch in ((self.norm1, self.attn), (self.norm2, self.mlp)):
            y, mixed = branch(norm(x), share, grid)
            x, share = add_branch(x, y, self.drop_path if self.training else 0.0, share, mixed)
        return x, share


class PvtV2(Model):
    """A pyramid of transformers; the head reads the mean of the last tokens."""

    stem_names = ("patch_embed1.",)
    head_names = ("head.",)

    def __init__(self, config: PvtV2Config, stem: Stem, classes: int) -> None:
        super().__init__()
        self.config = config
        self.takes = stem.takes
        self.stage_widths = config.widths
        self.stage_strides = tuple(stem.stride * 2**i for i in range(len(config.widths)))
        rates = iter(torch.linspace(0, config.drop_path, sum(config.depths), device="cpu").tolist())
        for i, width in enumerate(config.widths):
            embed = OverlapStem(config.widths[i - 1], self.grid, width, patch=2) if i else stem
            self.grid = embed.grid
            embed.add_module("norm", nn.LayerNorm(width))
            blocks = nn.ModuleList(PvtV2Block(config, i, self.grid, next(rates)) for _ in range(config.depths[i]))
            self.add_module(f"patch_embed{i + 1}", embed)
            self.add_module(f"block{i + 1}", blocks)
            self.add_module(f"norm{i + 1}", nn.LayerNorm(width, eps=1e-6))
        self.head = nn.Linear(config.widths[-1], classes) if classes else nn.Identity()
        self._initialise()

    def _initialise(self) -> None:
        start_small(self, nn.Linear | nn.Conv2d)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=math.sqrt(2 * module.groups / module.weight[:, 0].numel()))

    def _forward(self, x: Tensor, mix: Mix | None, visible: Visible | None, track: bool, stages: bool) -> Output:
        """See `Model.forward`; no token can be left out. Stages are normed, as the next stage reads them."""
        if visible is not None:
            raise ConfigError("a PVTv2 cannot leave tokens out", "convolutions need whole maps: use a ViT")
        grid = stem_of(self).token_grid(x)
        stem = self.get_submodule("patch_embed1")(x)  # (B, D, h, w)
        features = mix.apply(stem) if mix is not None and mix.after_stem else stem
        share = initial_share(mix, len(x), grid, x.device) if track else None  # (B, N, 2)
        tokens, given = features, []
        for i in range(1, len(self.config.depths) + 1):
            if i > 1:
                share = None if share is None else pool_shares(share, grid, kernel=3, stride=2, padding=1)
                grid = patch_grid(grid, 2)
                features = self.get_submodule(f"patch_embed{i}")(features)
            tokens = self.get_submodule(f"patch_embed{i}.norm")(features.flatten(2).transpose(1, 2))  # (B, N, D)
            for j in range(self.config.depths[i - 1]):
                tokens, share = self.get_submodule(f"block{i}.{j}")(tokens, share, grid)
            tokens = self.get_submodule(f"norm{i}")(tokens)
            features = tokens.transpose(1, 2).reshape(len(x), -1, *features.shape[2:])
            if stages:
                given.append(features)
        share = None if share is None else share.mean(1)
        return Output(self.head(tokens.mean(1)), tokens, stem, grid, share=share, stages=tuple(given))

    def token_logits(self, out: Output) -> Tensor:
        """What the head says of each position, (B, N, K); their mean is what it says of the image."""
        return self.head(out.tokens)

    def translate(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Published names stay, timm's become them."""
        found = {}
        for name, tensor in tensors.items():
            name = re.sub(r"^patch_embed\.", "patch_embed1.", name)
            name = re.sub(r"^stages\.(\d+)\.downsample\.", lambda m: f"patch_embed{int(m[1]) + 1}.", name)
            name = re.sub(r"^stages\.(\d+)\.blocks\.", lambda m: f"block{int(m[1]) + 1}.", name)
            name = re.sub(r"^stages\.(\d+)\.norm\.", lambda m: f"norm{int(m[1]) + 1}.", name)
            found[re.sub(r"\.mlp\.dwconv\.(weight|bias)$", r".mlp.dwconv.dwconv.\1", name)] = tensor
        return found

    def layer_of(self, name: str) -> int:
        """0: stem; then one for each block, with the patches before and the norm after those of a stage; last: head."""
        if name.startswith(self.stem_names):
            return 0
        if name.startswith(self.head_names):
            return self.layers - 1
        first, second = name.split(".")[:2]
        stage, depths = int(first[-1]) - 1, self.config.depths
        if first.startswith("block"):
            return sum(depths[:stage]) + int(second) + 1
        return sum(depths[:stage]) + (depths[stage] if first.startswith("norm") else 1)

    @property
    def layers(self) -> int:
        """Stem, blocks, head."""
        return sum(self.config.depths) + 2
