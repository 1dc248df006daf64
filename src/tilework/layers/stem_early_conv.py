"""Early convolutions: halve the grid again and again, then a linear map (Xiao et al., 2021; Good tokenizers, table 11).

They cost about as much as a block of the network, so Xiao et al. leave one out: DeiT-S goes with `model.depth=11`.

B batch | C input channels | H, W input grid | D width | h, w token grid
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from tilework.core.batch import Stage
from tilework.layers.stems import Stem, StemConfig, patch_grid


class EarlyConvStem(Stem):
    """Pixels to tokens by 3x3 convolutions of stride 2 with batch norm and ReLU, the last of the full width."""

    takes: Stage = "pixels"

    def __init__(self, channels: int, grid: tuple[int, int], width: int, halvings: int) -> None:
        super().__init__(patch_grid(grid, 2**halvings), width, 2**halvings)
        layers: list[nn.Module] = []
        for left in reversed(range(halvings)):
            wide = max(1, width >> left)
            layers += [nn.Conv2d(channels, wide, 3, 2, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(inplace=True)]
            channels = wide
        self.convs = nn.Sequential(*layers)
        self.proj = nn.Conv2d(channels, width, 1)

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W)
        """Returns (B, D, h, w)."""
        return self.proj(self.convs(x))


@StemConfig.choices.add("early_conv")
@dataclass(frozen=True)
class EarlyConvStemConfig(StemConfig):
    """Four halvings: patches of 16 px."""

    halvings: int = 4

    def build(self, channels: int, grid: tuple[int, int], width: int) -> Stem:
        """The stem for an image of `grid` pixels."""
        return EarlyConvStem(channels, grid, width, self.halvings)


class TokenEarlyConvStem(EarlyConvStem):
    """The same for code maps."""

    takes: Stage = "map"


@StemConfig.choices.add("token_early_conv")
@dataclass(frozen=True)
class TokenEarlyConvStemConfig(EarlyConvStemConfig):
    """One halving: patches of two by two codes."""

    halvings: int = 1

    def build(self, channels: int, grid: tuple[int, int], width: int) -> Stem:
        """The stem for codes of `channels` dimensions on `grid`."""
        return TokenEarlyConvStem(channels, grid, width, self.halvings)
