"""Vision transformer for pixels and for tokens (Dosovitskiy et al., 2021; DeiT; SeiT; LV-ViT).

B batch | N tokens | D width | h, w token grid | n visible patches. Parameter names are timm's, so its checkpoints load.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from tilework.core.batch import Mix
from tilework.core.bounds import check_below_one
from tilework.core.errors import ConfigError
from tilework.layers.block import Block
from tilework.layers.moto import Moto
from tilework.layers.positions import resize_positions, sincos_positions
from tilework.layers.stems import PatchStemConfig, Stem, StemConfig, TokenStemConfig
from tilework.models.model import Model, ModelConfig, Output, Visible, initial_share, stage_blocks, start_small


@ModelConfig.choices.add("vit")
@dataclass(frozen=True)
class VitConfig(ModelConfig):
    """Settings of a ViT."""

    width: int = 192
    depth: int = 12
    heads: int = 3
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    drop_path: float = 0.0  # of the last block; rises linearly from zero
    pool: Literal["class", "mean"] = "class"
    positions: Literal["learnt", "sincos", "sincos_learnt"] = "learnt"  # the last: they start as sines and learn
    eps: float = 1e-6  # of the norms
    head_start: float = 0.02  # deviation of the first weights of the heads
    divisor: float = 1.0  # of what each block adds (LV-ViT)
    dense: bool = False  # a second head classifies every patch token (LV-ViT)
    moto_blocks: int = 0  # so many first blocks end with MoTo on the patch tokens (Good tokenizers, table 5)
    entities: int = 8  # of it
    stem: StemConfig = field(default_factory=PatchStemConfig)

    def __post_init__(self) -> None:
        check_below_one(self, "drop_path")

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> Vit:
        """The network for an input of `channels` on `grid`."""
        if not 0 <= self.moto_blocks <= self.depth:
            raise ConfigError(f"MoTo in {self.moto_blocks} of {self.depth} blocks", "set model.moto_blocks within them")
        return Vit(self, self.stem.build(channels, grid, self.width), classes)

    def for_tokens(self) -> VitConfig:
        """The same network with SeiT's Stem-Adapter."""
        return replace(self, stem=TokenStemConfig())


class Vit(Model):
    """Pre-norm ViT with a class token; the head reads it, or the mean of the patch tokens.

    With a dense head, evaluation adds half of the highest logit over tokens to each class (LV-ViT).
    """

    stem_names = ("patch_embed.",)
    head_names = ("head.", "aux_head.")

    def __init__(self, config: VitConfig, stem: Stem, classes: int) -> None:
        super().__init__()
        self.config = config
        self.takes = stem.takes
        self.grid = stem.grid
        self.stage_widths, self.stage_strides = (config.width,) * 4, (stem.stride,) * 4
        width, places = config.width, stem.grid[0] * stem.grid[1]
        self.patch_embed = stem
        self.cls_token = nn.Parameter(torch.empty(1, 1, width))
        self.pos_embed = nn.Parameter(torch.empty(1, 1 + places, width), requires_grad=config.positions != "sincos")
        self.blocks = nn.ModuleList(
            Block(
                width,
                config.heads,
                config.mlp_ratio,
                drop_path=config.drop_path * i / max(1, config.depth - 1),
                qkv_bias=config.qkv_bias,
                eps=config.eps,
                divisor=config.divisor,
            )
            for i in range(config.depth)
        )
        self.motos = nn.ModuleList(Moto(width, config.entities) for _ in range(config.moto_blocks))
        pooled = config.pool == "mean"
        self.norm = nn.Identity() if pooled else nn.LayerNorm(width, eps=config.eps)
        self.fc_norm = nn.LayerNorm(width, eps=config.eps) if pooled else nn.Identity()
        self.head = nn.Linear(width, classes) if classes else nn.Identity()
        self.aux_head = nn.Linear(width, classes) if classes and config.dense else None
        self._initialise()

    def _initialise(self) -> None:
        start_small(self)
        with torch.no_grad():
            for head in (self.head, self.aux_head):
                if isinstance(head, nn.Linear):
                    head.weight *= self.config.head_start / 0.02
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        if self.config.positions == "learnt":
            nn.init.trunc_normal_(self.pos_embed, std=0.02)
        else:
            with torch.no_grad():
                self.pos_embed.zero_()
                self.pos_embed[0, 1:] = sincos_positions(self.config.width, *self.grid)

    def _forward(self, x: Tensor, mix: Mix | None, visible: Visible | None, track: bool, stages: bool) -> Output:
        """See `Model.forward`; stages are the patch tokens after each quarter of the blocks."""
        if visible is not None and stages:
            raise ConfigError("tokens that are left out leave no maps", "ask for stages or give visible, not both")
        grid = self.patch_embed.token_grid(x)
        positions = self._positions(grid)  # (1, 1 + N, D)
        stem = self.patch_embed(x)  # (B, D, h, w)
        mixed = mix.apply(stem) if mix is not None and mix.after_stem else stem
        tokens, there = mixed.flatten(2).transpose(1, 2), positions[:, 1:]  # (B, N, D)
        tokens = tokens + there if visible is None else visible.place(tokens, there)  # (B, n, D)
        share = initial_share(mix, len(x), grid, x.device) if track else None  # (B, N, 2)
        area = None if share is None else share.mean(1, keepdim=True)
        if visible is not None and share is not None:
            share = visible.pick(share)
        first = (self.cls_token + positions[:, :1]).expand(len(x), -1, -1)
        tokens = torch.cat([first.to(tokens.dtype), tokens], 1)
        if share is not None and area is not None:
            share = torch.cat([area, share], 1)  # the class token carries the mixture by area
        maps: list[Tensor] = []
        for i, block in enumerate(self.blocks):
            tokens, share = block(tokens, share)
            if i < len(self.motos):
                tokens = torch.cat([tokens[:, :1], self._modulated(tokens[:, 1:], i, grid)], 1)
            if stages:
                patches = tokens[:, 1:].transpose(1, 2).unflatten(2, grid)  # (B, D, h, w)
                maps += [patches] * stage_blocks(self.config.depth).count(i)
        tokens = self.norm(tokens)
        pooled = self.config.pool == "mean" and tokens.shape[1] > 1  # nothing visible leaves the class token
        read = tokens[:, 1:].mean(1) if pooled else tokens[:, 0]
        if share is not None:
            share = share[:, 1:].mean(1) if pooled else share[:, 0]
        logits, dense = self.head(self.fc_norm(read)), None
        if self.aux_head is not None:
            dense = self.aux_head(self.fc_norm(tokens[:, 1:]))  # (B, N, K)
            if not self.training:
                logits = logits + 0.5 * dense.amax(1)
        return Output(logits, tokens[:, 1:], stem, grid, dense, share, tuple(maps), None if pooled else read)

    def _positions(self, grid: tuple[int, int]) -> Tensor:
        """Learnt ones are stretched over another grid, fixed ones go on beyond the one built for. (1, 1 + N, D)."""
        if self.config.positions != "sincos" or grid == self.grid:
            return resize_positions(self.pos_embed, self.grid, grid)
        with self.pos_embed.device:
            fixed = sincos_positions(self.config.width, *grid)
        return torch.cat([self.pos_embed[:, :1], fixed[None].to(self.pos_embed.dtype)], 1)

    def _modulated(self, patches: Tensor, block: int, grid: tuple[int, int]) -> Tensor:
        """Patch tokens after the block's MoTo; visible ones alone are a map of one column. patches: (B, N, D)."""
        whole = patches.shape[1] == grid[0] * grid[1]
        x = patches.transpose(1, 2).unflatten(2, grid if whole else (patches.shape[1], 1))  # (B, D, h, w)
        return self.motos[block](x).flatten(2).transpose(1, 2) if patches.shape[1] else patches

    def token_logits(self, out: Output) -> Tensor:
        """The dense head's, or what the head says of each token, (B, N, K)."""
        return self.head(self.fc_norm(out.tokens)) if out.dense is None else out.dense

    def translate(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Names of LV-ViT's published checkpoints: convolutions and batch norms of its stem are counted from 1."""

        def layer(found: re.Match[str]) -> str:
            return f"patch_embed.convs.{3 * (int(found[2]) - 1) + (found[1] == 'bn')}."

        return {re.sub(r"^patch_embed\.(conv|bn)(\d)\.", layer, name): tensor for name, tensor in tensors.items()}

    def layer_of(self, name: str) -> int:
        """0: stem and positions; i + 1: block i; last: norm and head."""
        if name.startswith(("patch_embed", "cls_token", "pos_embed")):
            return 0
        return int(name.split(".")[1]) + 1 if name.startswith(("blocks.", "motos.")) else self.config.depth + 1

    @property
    def layers(self) -> int:
        """Stem, blocks, head."""
        return self.config.depth + 2
