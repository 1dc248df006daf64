"""T2T-ViT for pixels and for tokens: a narrow ViT on tokens made by soft splits (Yuan et al., 2021).

B batch | H, W pixels | h, w = H/16, W/16 | N tokens | D width | n visible tokens. Parameter names are the published
ones; see `published` for the scale of the authors' files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from tilework.core.batch import Mix
from tilework.core.bounds import check_below_one
from tilework.core.errors import ConfigError
from tilework.layers.block import Block
from tilework.layers.positions import resize_positions
from tilework.layers.stem_t2t import TokensToToken, TokensToTokenConfig
from tilework.layers.stems import Stem, StemConfig, TokenStemConfig
from tilework.models.model import Model, ModelConfig, Output, Visible, initial_share, stage_blocks, start_small


@ModelConfig.choices.add("t2t_vit")
@dataclass(frozen=True)
class T2tVitConfig(ModelConfig):
    """Settings of a T2T-ViT."""

    width: int = 384
    depth: int = 14
    heads: int = 6
    mlp_ratio: float = 3.0
    drop_path: float = 0.0  # of the last block; rises linearly from zero
    stem: StemConfig = field(default_factory=TokensToTokenConfig)

    def __post_init__(self) -> None:
        check_below_one(self, "drop_path")

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> T2tVit:
        """The network for an input of `channels` on `grid`."""
        if self.width % 2:
            raise ConfigError(f"sine-cosine positions need an even width, not {self.width}", "change model.width")
        return T2tVit(self, self.stem.build(channels, grid, self.width), classes)

    def for_tokens(self) -> T2tVitConfig:
        """The same backbone with SeiT's Stem-Adapter in place of the soft splits."""
        return replace(self, stem=TokenStemConfig())


def sequence_positions(length: int, width: int) -> Tensor:
    """Sines and cosines in turn along a sequence (Vaswani et al., 2017). (length, width)."""
    rates = 10000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(length)[:, None] * rates
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1).float()


class T2tVit(Model):
    """A deep and narrow ViT with fixed positions; the head reads the class token."""

    stem_names = ("tokens_to_token.",)
    head_names = ("head.",)

    def __init__(self, config: T2tVitConfig, stem: Stem, classes: int) -> None:
        super().__init__()
        self.config = config
        self.takes = stem.takes
        self.grid = stem.grid
        self.stage_widths, self.stage_strides = (config.width,) * 4, (stem.stride,) * 4
        self.tokens_to_token = stem
        self.cls_token = nn.Parameter(torch.empty(1, 1, config.width))
        positions = sequence_positions(1 + stem.grid[0] * stem.grid[1], config.width)
        self.pos_embed = nn.Parameter(positions[None], requires_grad=False)
        self.blocks = nn.ModuleList(
            Block(
                config.width,
                config.heads,
                config.mlp_ratio,
                drop_path=config.drop_path * i / max(1, config.depth - 1),
                qkv_bias=False,
                eps=1e-5,
            )
            for i in range(config.depth)
        )
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, classes) if classes else nn.Identity()
        self._initialise()

    def _initialise(self) -> None:
        start_small(self)
        nn.init.trunc_normal_(self.cls_token, std=0.02)

    def _forward(self, x: Tensor, mix: Mix | None, visible: Visible | None, track: bool, stages: bool) -> Output:
        """See `Model.forward`; sources of a mixed image are followed from its pixels through the soft splits.

        Stages are the patch tokens after each quarter of the blocks.
        """
        if visible is not None and stages:
            raise ConfigError("tokens that are left out leave no maps", "ask for stages or give visible, not both")
        grid = self.tokens_to_token.token_grid(x)
        positions = resize_positions(self.pos_embed, self.grid, grid)  # sines anew would shift rows of another length
        splits = None if mix is not None and mix.after_stem else self.tokens_to_token
        first_grid = (x.shape[2], x.shape[3]) if isinstance(splits, TokensToToken) else grid
        share = initial_share(mix, len(x), first_grid, x.device) if track else None  # (B, H W, 2) or (B, N, 2)
        area = None if share is None else share.mean(1, keepdim=True)
        if isinstance(splits, TokensToToken):
            stem, share = splits.carry(x, share)  # (B, D, h, w), (B, N, 2)
        else:
            stem = self.tokens_to_token(x)
        mixed = mix.apply(stem) if mix is not None and mix.after_stem else stem
        tokens, there = mixed.flatten(2).transpose(1, 2), positions[:, 1:]  # (B, N, D)
        tokens = tokens + there if visible is None else visible.place(tokens, there)  # (B, n, D)
        if visible is not None and share is not None:
            share = visible.pick(share)
        first = (self.cls_token + positions[:, :1]).expand(len(x), -1, -1)
        tokens = torch.cat([first.to(tokens.dtype), tokens], 1)
        if share is not None and area is not None:
            share = torch.cat([area, share], 1)  # the class token carries the mixture by area
        maps: list[Tensor] = []
        for i, block in enumerate(self.blocks):
            tokens, share = block(tokens, share)
            if stages:
                patches = tokens[:, 1:].transpose(1, 2).unflatten(2, grid)  # (B, D, h, w)
                maps += [patches] * stage_blocks(self.config.depth).count(i)
        tokens = self.norm(tokens)
        share = None if share is None else share[:, 0]
        read = tokens[:, 0]
        return Output(self.head(read), tokens[:, 1:], stem, grid, share=share, stages=tuple(maps), class_token=read)

    def token_logits(self, out: Output) -> Tensor:
        """What the head says of each token, (B, N, K)."""
        return self.head(out.tokens)

    def layer_of(self, name: str) -> int:
        """0: stem and positions; i + 1: block i; last: norm and head."""
        if name.startswith(("tokens_to_token", "cls_token", "pos_embed")):
            return 0
        return int(name.split(".")[1]) + 1 if name.startswith("blocks.") else self.config.depth + 1

    @property
    def layers(self) -> int:
        """Stem, blocks, head."""
        return self.config.depth + 2


def published(tensors: Mapping[str, Tensor], heads: int) -> dict[str, Tensor]:
    """The authors' files for a model of ours: they divide products by the root of the width, we by that of a head's.

    The queries take the difference over.
    """
    found = dict(tensors)
    for name, weight in tensors.items():
        if re.fullmatch(r"blocks\.\d+\.attn\.qkv\.weight", name):
            query, key, value = weight.chunk(3)
            found[name] = torch.cat([query / math.sqrt(heads), key, value])
    return found
