"""PVT for pixels and for tokens: a pyramid whose attention looks at a coarser grid (Wang et al., 2021).

B batch | h, w grid of a stage | N = h w | D width of a stage | S sources. Parameter names are the published ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from tilework.core.batch import Mix
from tilework.core.bounds import check_below_one
from tilework.core.errors import ConfigError
from tilework.layers.block import Block
from tilework.layers.positions import resize_positions
from tilework.layers.shares import pool_shares
from tilework.layers.spatial_reduction import SpatialReductionAttention
from tilework.layers.stems import PatchStem, PatchStemConfig, Stem, StemConfig, TokenFineStemConfig, patch_grid
from tilework.models.model import Model, ModelConfig, Output, Visible, initial_share, start_small, stem_of


@ModelConfig.choices.add("pvt")
@dataclass(frozen=True)
class PvtConfig(ModelConfig):
    """Settings of a PVT; one number for each stage."""

    widths: tuple[int, ...] = (64, 128, 320, 512)
    depths: tuple[int, ...] = (3, 4, 6, 3)
    heads: tuple[int, ...] = (1, 2, 5, 8)
    mlp_ratios: tuple[int, ...] = (8, 8, 4, 4)
    reductions: tuple[int, ...] = (8, 4, 2, 1)  # side of the window that makes a key; none in the last stage
    drop_path: float = 0.0  # of the last block; rises linearly from zero
    stem: StemConfig = field(default_factory=lambda: PatchStemConfig(4))

    def __post_init__(self) -> None:
        check_below_one(self, "drop_path")

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> Pvt:
        """The network for an input of `channels` on `grid`."""
        if len({len(self.widths), len(self.depths), len(self.heads), len(self.mlp_ratios), len(self.reductions)}) > 1:
            raise ConfigError("the settings of a PVT are for different numbers of stages", "give each as many")
        if self.reductions[-1] != 1:
            raise ConfigError("a class token cannot be reduced", "let model.reductions end with 1")
        return Pvt(self, self.stem.build(channels, grid, self.widths[0]), classes)

    def for_tokens(self) -> PvtConfig:
        """The same network with two by two tokens for each code."""
        return replace(self, stem=TokenFineStemConfig())


class Pvt(Model):
    """A pyramid of transformers; a class token joins the last stage, and the head reads it."""

    stem_names = ("patch_embed1.",)
    head_names = ("head.",)

    def __init__(self, config: PvtConfig, stem: Stem, classes: int) -> None:
        super().__init__()
        self.config = config
        self.takes = stem.takes
        self.grids = [(stem.grid[0] >> i, stem.grid[1] >> i) for i in range(len(config.depths))]
        self.grid = self.grids[-1]
        self.stage_widths = config.widths
        self.stage_strides = tuple(stem.stride * 2**i for i in range(len(config.widths)))
        rates = iter(torch.linspace(0, config.drop_path, sum(config.depths), device="cpu").tolist())
        for i, (width, heads, grid) in enumerate(zip(config.widths, config.heads, self.grids, strict=True)):
            embed = PatchStem(config.widths[i - 1], self.grids[i - 1], width, patch=2) if i else stem
            embed.add_module("norm", nn.LayerNorm(width))
            places = grid[0] * grid[1] + (i == len(config.depths) - 1)
            blocks = nn.ModuleList()
            for _ in range(config.depths[i]):
                block = Block(width, heads, config.mlp_ratios[i], next(rates))
                block.add_module("attn", SpatialReductionAttention(width, heads, grid, config.reductions[i]))
                blocks.append(block)
            self.add_module(f"patch_embed{i + 1}", embed)
            self.register_parameter(f"pos_embed{i + 1}", nn.Parameter(torch.empty(1, places, width)))
            self.add_module(f"block{i + 1}", blocks)
        self.norm = nn.LayerNorm(config.widths[-1], eps=1e-6)
        self.cls_token = nn.Parameter(torch.empty(1, 1, config.widths[-1]))
        self.head = nn.Linear(config.widths[-1], classes) if classes else nn.Identity()
        self._initialise()

    def _initialise(self) -> None:
        start_small(self)
        for name in ("cls_token", *self.position_grids):
            nn.init.trunc_normal_(self.get_parameter(name), std=0.02)

    @property
    def position_grids(self) -> dict[str, tuple[int, int]]:
        """Positions of every stage."""
        return {f"pos_embed{i}": grid for i, grid in enumerate(self.grids, 1)}

    def _forward(self, x: Tensor, mix: Mix | None, visible: Visible | None, track: bool, stages: bool) -> Output:
        """See `Model.forward`; no token can be left out. Stages have no norm after them, as published."""
        if visible is not None:
            raise ConfigError("a PVT cannot leave tokens out", "keys need whole windows: use a ViT")
        grid = stem_of(self).token_grid(x)
        stem = self.get_submodule("patch_embed1")(x)  # (B, D, h, w)
        maps = mix.apply(stem) if mix is not None and mix.after_stem else stem
        share = initial_share(mix, len(x), grid, x.device) if track else None  # (B, N, 2)
        area = None if share is None else share.mean(1, keepdim=True)
        tokens, given = maps, []
        for i, depth in enumerate(self.config.depths, 1):
            if i > 1:
                maps = self.get_submodule(f"patch_embed{i}")(tokens.transpose(1, 2).unflatten(2, grid))
                share = None if share is None else pool_shares(share, grid, kernel=2, stride=2)
                grid = patch_grid(grid, 2)
            tokens = self.get_submodule(f"patch_embed{i}.norm")(maps.flatten(2).transpose(1, 2))  # (B, N, D)
            if i == len(self.grids):
                tokens = torch.cat([self.cls_token.expand(len(x), -1, -1).to(tokens.dtype), tokens], 1)
                if share is not None and area is not None:
                    share = torch.cat([area, share], 1)  # the class token carries the mixture by area
            tokens = tokens + resize_positions(self.get_parameter(f"pos_embed{i}"), self.grids[i - 1], grid)
            for j in range(depth):
                tokens, share = self.get_submodule(f"block{i}.{j}")(tokens, share, grid)
            if stages:  # without the class token
                given.append(tokens[:, -grid[0] * grid[1] :].transpose(1, 2).unflatten(2, grid))
        tokens = self.norm(tokens)
        share = None if share is None else share[:, 0]
        read = tokens[:, 0]
        return Output(self.head(read), tokens[:, 1:], stem, grid, share=share, stages=tuple(given), class_token=read)

    def token_logits(self, out: Output) -> Tensor:
        """What the head says of each token, (B, N, K)."""
        return self.head(out.tokens)

    def layer_of(self, name: str) -> int:
        """0: stem and its positions; then one for each block, the first of a stage with its patches; last: head."""
        if name.startswith(("patch_embed1.", "pos_embed1")):
            return 0
        if name.startswith(("norm.", "head.")):
            return self.layers - 1
        depths = self.config.depths
        if name == "cls_token":
            return sum(depths[:-1]) + 1
        first, _, rest = name.partition(".")
        block = int(rest.split(".")[0]) if first.startswith("block") else 0
        return sum(depths[: int(first[-1]) - 1]) + block + 1

    @property
    def layers(self) -> int:
        """Stem, blocks, head."""
        return sum(self.config.depths) + 2
