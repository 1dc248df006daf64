"""T2T-ViT for pixels and for tokens: tokens made in steps of soft splits, then a narrow ViT (Yuan et al., 2021).

B batch | H, W pixels | h, w = H/16, W/16 | N tokens | D width | C token width | m random features | S sources |
n visible tokens. Parameter names are the published ones; see `published` for the scale of the authors' files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.batch import Mix, Stage
from tilework.core.errors import ConfigError
from tilework.layers.block import Block, Mlp
from tilework.layers.shares import pool_shares
from tilework.layers.stems import Stem, StemConfig, TokenStemConfig, patch_grid
from tilework.models.model import Model, ModelConfig, Output, initial_share, start_small

SPLITS = ((7, 4, 2), (3, 2, 1), (3, 2, 1))  # side, stride and padding of the windows of each soft split


class TokenPerformer(nn.Module):
    """Attention of linear cost by positive random features, beside its values; then an MLP (Performer's FAVOR+)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.kqv = nn.Linear(inputs, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm1 = nn.LayerNorm(inputs)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.Dropout(0.1))
        self.drop = nn.Dropout(0.1)
        features = width // 2
        self.w = nn.Parameter(nn.init.orthogonal_(torch.empty(features, width)) * features**0.5, requires_grad=False)

    def _features(self, x: Tensor) -> Tensor:
        """exp(w x - |x|^2 / 2) / sqrt(m), whose products approximate exp(q k). (B, N, C) to (B, N, m)."""
        return (x @ self.w.T - x.square().sum(-1, keepdim=True) / 2).exp() / len(self.w) ** 0.5

    def forward(self, x: Tensor, share: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """x: (B, N, inputs); share: (B, N, S) or None. Returns (B, N, C) and the shares."""
        k, q, v = self.kqv(self.norm1(x)).chunk(3, -1)  # each (B, N, C)
        with torch.autocast(x.device.type, enabled=False):
            k, q = self._features(k.float()), self._features(q.float())  # (B, N, m)
            total = q @ k.sum(1)[..., None] + 1e-8  # (B, N, 1)
            y = q @ (k.transpose(1, 2) @ v.float()) / total
            if share is not None:
                with torch.no_grad():  # what keeps the total from zero is the token's own
                    share = (share + (q @ (k.transpose(1, 2) @ share) + 1e-8 * share) / total) / 2
        x = v + self.drop(self.proj(y.to(v.dtype)))
        return x + self.mlp(self.norm2(x)), share


class TokenAttention(nn.Module):
    """One head of attention beside its values."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.scale = inputs**-0.5
        self.qkv = nn.Linear(inputs, 3 * width, bias=False)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, share: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """x: (B, N, inputs); share: (B, N, S) or None. Returns (B, N, C) and the shares."""
        q, k, v = self.qkv(x)[:, None].chunk(3, -1)  # each (B, 1, N, C)
        y = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        if share is not None:  # one head: shares are values
            with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
                mixed = F.scaled_dot_product_attention(q.float(), k.float(), share[:, None], scale=self.scale)
                share = (share + mixed[:, 0]) / 2
        return (v + self.proj(y))[:, 0], share


class TokenTransformer(nn.Module):
    """The same as a plain transformer layer (T2T-ViT_t)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(inputs)
        self.attn = TokenAttention(inputs, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = Mlp(width, width)

    def forward(self, x: Tensor, share: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """x: (B, N, inputs); share: (B, N, S) or None. Returns (B, N, C) and the shares."""
        x, share = self.attn(self.norm1(x), share)
        return x + self.mlp(self.norm2(x)), share


class TokensToToken(Stem):
    """Windows that overlap become tokens, attention restructures them, windows of tokens become tokens, twice."""

    takes: Stage = "pixels"

    def __init__(self, channels: int, grid: tuple[int, int], width: int, config: TokensToTokenConfig) -> None:
        super().__init__(patch_grid(grid, 16), width)
        if config.attention not in ("performer", "transformer"):
            raise ConfigError(f"no T2T with attention {config.attention!r}", "give 'performer' or 'transformer'")
        self.pixels = grid
        layer = TokenPerformer if config.attention == "performer" else TokenTransformer
        self.attention1 = layer(channels * 7 * 7, config.width)
        self.attention2 = layer(config.width * 3 * 3, config.width)
        self.project = nn.Linear(config.width * 3 * 3, width)

    def forward(self, x: Tensor) -> Tensor:  # (B, 3, H, W)
        """Returns (B, D, h, w)."""
        return self.carry(x)[0]

    def carry(self, x: Tensor, share: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """x: (B, 3, H, W); share: (B, H W, S) of the pixels, or None. Returns (B, D, h, w), (B, h w, S)."""
        grid = self.pixels
        for layer, (side, stride, padding) in zip((self.attention1, self.attention2, None), SPLITS, strict=True):
            tokens = F.unfold(x, side, padding=padding, stride=stride).transpose(1, 2)  # (B, N, channels side^2)
            share = None if share is None else pool_shares(share, grid, side, stride, padding)
            grid = (grid[0] // stride, grid[1] // stride)
            if layer is None:
                tokens = self.project(tokens)
            else:
                tokens, share = layer(tokens, share)
            x = tokens.transpose(1, 2).unflatten(2, grid)
        return x, share


@StemConfig.choices.add("tokens_to_token")
@dataclass(frozen=True)
class TokensToTokenConfig(StemConfig):
    """Soft splits of 7x7, 3x3 and 3x3 places; a token for each 16x16 pixels."""

    width: int = 64  # of the tokens between splits
    attention: Literal["performer", "transformer"] = "performer"  # transformer: T2T-ViT_t

    def build(self, channels: int, grid: tuple[int, int], width: int) -> Stem:
        """The stem for an image of `grid` pixels."""
        return TokensToToken(channels, grid, width, self)


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

    def forward(self, x: Tensor, *, mix: Mix | None = None, keep: Tensor | None = None, track: bool = False) -> Output:
        """See `Model.forward`; sources of a mixed image are followed from its pixels through the soft splits."""
        splits = None if mix is not None and mix.after_stem else self.tokens_to_token
        grid = splits.pixels if isinstance(splits, TokensToToken) else self.grid
        share = initial_share(mix, len(x), grid, x.device) if track else None  # (B, H W, 2) or (B, N, 2)
        area = None if share is None else share.mean(1, keepdim=True)
        if isinstance(splits, TokensToToken):
            stem, share = splits.carry(x, share)  # (B, D, h, w), (B, N, 2)
        else:
            stem = self.tokens_to_token(x)
        mixed = mix.apply(stem) if mix is not None and mix.after_stem else stem
        tokens = mixed.flatten(2).transpose(1, 2) + self.pos_embed[:, 1:]  # (B, N, D)
        if keep is not None:
            tokens = tokens.gather(1, keep[..., None].expand(-1, -1, tokens.shape[2]))  # (B, n, D)
            share = None if share is None else share.gather(1, keep[..., None].expand(-1, -1, share.shape[2]))
        first = (self.cls_token + self.pos_embed[:, :1]).expand(len(x), -1, -1)
        tokens = torch.cat([first.to(tokens.dtype), tokens], 1)
        if share is not None and area is not None:
            share = torch.cat([area, share], 1)  # the class token carries the mixture by area
        for block in self.blocks:
            tokens, share = block(tokens, share)
        tokens = self.norm(tokens)
        share = None if share is None else share[:, 0]
        return Output(self.head(tokens[:, 0]), tokens[:, 1:], stem, self.grid, share=share)

    def places(self, out: Output) -> Tensor:
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
