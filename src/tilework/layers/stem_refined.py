"""Refined patches: several scales inside a token, windows beyond it, attention among tokens (Good tokenizers, A.2).

The three refinements add up: intra, local, inter. Small windows tile the patch; they pass a GELU and are averaged over
it before the scales are joined, our reading: without that the stem would be one linear map, as the plain one is.

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
        super().__init__(patch_grid(grid, config.windows[-1]), width, config.windows[-1])
        self.windows, self.local = config.windows, config.local
        count = len(config.windows)
        widths = [width // count + (i < width % count) for i in range(count)]
        self.scales = nn.ModuleList(
            nn.Conv2d(channels, part, k * (2 if config.local else 1), stride=k)
            for k, part in zip(config.windows, widths, strict=True)
        )
        self.proj = nn.Conv2d(width, width, 1) if count > 1 else nn.Identity()
        self.attn_norm = nn.LayerNorm(width) if config.inter else None
        self.attn = Attention(width, config.heads) if config.inter else None

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W)
        """Returns (B, D, h, w)."""
        grid = self.token_grid(x)
        found = [conv(self._pad(x, k)) for conv, k in zip(self.scales, self.windows, strict=True)]  # (B, ., H/k, W/k)
        if len(found) > 1:
            found = [F.adaptive_avg_pool2d(F.gelu(y), grid) for y in found]
        y = self.proj(torch.cat(found, 1))
        if self.attn_norm is None or self.attn is None:
            return y
        tokens = y.flatten(2).transpose(1, 2)  # (B, h w, D)
        tokens = tokens + self.attn(self.attn_norm(tokens))[0]
        return tokens.transpose(1, 2).unflatten(2, grid)

    def _pad(self, x: Tensor, step: int) -> Tensor:
        """Room for windows of twice the step, as much before as after, or one more after."""
        before, after = step // 2, step - step // 2
        return F.pad(x, (before, after, before, after)) if self.local else x


@StemConfig.choices.add("refined")
@dataclass(frozen=True)
class RefinedStemConfig(StemConfig):
    """Which refinements; the largest window is the patch, and one window alone leaves intra out."""

    windows: tuple[int, ...] = (4, 8, 16)  # intra
    local: bool = False  # windows of twice the size, at the same steps
    inter: bool = False  # one layer of self-attention at the end
    heads: int = 1  # of it

    def __post_init__(self) -> None:
        if not self.windows or min(self.windows) < 1 or any(self.windows[-1] % k for k in self.windows):
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
