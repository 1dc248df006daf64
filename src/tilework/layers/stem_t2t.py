"""Tokens made in steps of soft splits: windows that overlap, restructured by attention (T2T-ViT, Yuan et al., 2021).

B batch | H, W pixels | h, w = H/16, W/16 | N tokens | D width | C token width | m random features | S sources.
Parameter names are the published ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.batch import Stage
from tilework.core.errors import ConfigError
from tilework.layers.block import Mlp
from tilework.layers.shares import pool_shares
from tilework.layers.stems import Stem, StemConfig, patch_grid

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
        super().__init__(patch_grid(grid, 16), width, stride=16)
        if config.attention not in ("performer", "transformer"):
            raise ConfigError(f"no T2T with attention {config.attention!r}", "give 'performer' or 'transformer'")
        layer = TokenPerformer if config.attention == "performer" else TokenTransformer
        self.attention1 = layer(channels * 7 * 7, config.width)
        self.attention2 = layer(config.width * 3 * 3, config.width)
        self.project = nn.Linear(config.width * 3 * 3, width)

    def forward(self, x: Tensor) -> Tensor:  # (B, 3, H, W)
        """Returns (B, D, h, w)."""
        return self.carry(x)[0]

    def carry(self, x: Tensor, share: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """x: (B, 3, H, W); share: (B, H W, S) of the pixels, or None. Returns (B, D, h, w), (B, h w, S)."""
        grid = (x.shape[2], x.shape[3])
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
    """Soft splits of 7x7, 3x3 and 3x3 positions; a token for each 16x16 pixels."""

    width: int = 64  # of the tokens between splits
    attention: Literal["performer", "transformer"] = "performer"  # transformer: T2T-ViT_t

    def build(self, channels: int, grid: tuple[int, int], width: int) -> Stem:
        """The stem for an image of `grid` pixels."""
        return TokensToToken(channels, grid, width, self)
