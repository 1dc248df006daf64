"""Refined patches: several scales inside a token, windows beyond it, attention among tokens (Good tokenizers, A.2).

The three refinements add up: intra, local, inter. Intra is the cross-scale embedding of CrossFormer: windows of 4, 8,
16 and 32 px around the middle of every patch of 16, joined by a linear map. These four have the parameters and
operations of table 1; the three of the appendix do not. With `patch=0` windows are not larger than the patch and tile
it; they pass a GELU and are averaged over it before they are joined.

B batch | C input channels | H, W input grid | D width | h, w token grid | k window
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.batch import Stage
from tilework.layers.attention import Attention
from tilework.layers.stems import Stem, StemConfig, patch_grid


class RefinedStem(Stem):
    """Pixels to tokens; with one scale and nothing else it is the plain stem."""

    takes: Stage = "pixels"

    def __init__(self, channels: int, grid: tuple[int, int], width: int, config: RefinedStemConfig) -> None:
        patch = config.patch or config.windows[-1]
        super().__init__(patch_grid(grid, patch), width, patch)
        count = len(config.windows)
        self.tiled = count > 1 and not config.patch
        self.windows = [(k * (2 if config.local else 1), config.patch or k) for k in config.windows]  # sizes and steps
        widths = [width // count + (i < width % count) for i in range(count)]
        self.scales = nn.ModuleList(
            nn.Conv2d(channels, part, size, stride=step)
            for part, (size, step) in zip(widths, self.windows, strict=True)
        )
        self.proj = nn.Conv2d(width, width, 1) if count > 1 else nn.Identity()
        self.attn_norm = nn.LayerNorm(width) if config.inter else None
        self.attn = Attention(width, config.heads) if config.inter else None

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W)
        """Returns (B, D, h, w)."""
        grid = self.token_grid(x)
        found = [conv(centred(x, *window)) for conv, window in zip(self.scales, self.windows, strict=True)]
        if self.tiled:
            found = [F.adaptive_avg_pool2d(F.gelu(y), grid) for y in found]  # of (B, ., H/k, W/k)
        y = self.proj(torch.cat(found, 1))
        if self.attn_norm is None or self.attn is None:
            return y
        tokens = y.flatten(2).transpose(1, 2)  # (B, h w, D)
        tokens = tokens + self.attn(self.attn_norm(tokens))[0]
        return tokens.transpose(1, 2).unflatten(2, grid)


def centred(x: Tensor, size: int, step: int) -> Tensor:
    """A margin, or a cut, so that windows of a size lie around the middles of their steps. x: (B, C, H, W)."""
    before, after = (size - step) // 2, (size - step + 1) // 2
    return F.pad(x, (before, after, before, after)) if size != step else x


@StemConfig.choices.add("refined")
@dataclass(frozen=True)
class RefinedStemConfig(StemConfig):
    """Which refinements; one window alone leaves intra out."""

    windows: tuple[int, ...] = (4, 8, 16)  # intra; (4, 8, 16, 32) with patch=16 for table 1
    local: bool = False  # windows of twice the size, at the same steps
    inter: bool = False  # one layer of self-attention at the end
    heads: int = 1  # of it
    patch: int = 0  # step of every window; 0: windows step by their own size and tile a patch of the last one's

    def __post_init__(self) -> None:
        if not self.windows or min(self.windows) < 1 or self.patch < 0:
            raise ValueError(f"windows {self.windows} on patches of {self.patch} px: there are no such ones")
        if not self.patch and any(self.windows[-1] % k for k in self.windows):
            raise ValueError(f"windows {self.windows} do not tile a patch of the last one's size")

    def build(self, channels: int, grid: tuple[int, int], width: int) -> Stem:
        """The stem for an image of `grid` pixels."""
        return RefinedStem(channels, grid, width, self)


class TokenRefinedStem(RefinedStem):
    """The same for code maps; one window of 2 with `local` is the Stem-Adapter."""

    takes: Stage = "map"


@StemConfig.choices.add("token_refined")
@dataclass(frozen=True)
class TokenRefinedStemConfig(RefinedStemConfig):
    """Refined patches of codes."""

    windows: tuple[int, ...] = (1, 2)

    def build(self, channels: int, grid: tuple[int, int], width: int) -> Stem:
        """The stem for codes of `channels` dimensions on `grid`."""
        return TokenRefinedStem(channels, grid, width, self)
