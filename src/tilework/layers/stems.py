"""Stems: what turns the input into a map of tokens, and all that differs between token and pixel models.

B batch | C input channels | H, W input grid | D width | h, w token grid
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.batch import Stage
from tilework.core.errors import ConfigError
from tilework.core.registry import Registry


class Stem(nn.Module):
    """Input to token map; `grid` is the size of that map, `width` its channels, `stride` the input positions per token.

    A stem is built for one grid and takes any other that it can divide.
    """

    takes: Stage

    def __init__(self, grid: tuple[int, int], width: int, stride: float = 1) -> None:
        super().__init__()
        self.grid, self.width, self.stride = grid, width, stride

    def token_grid(self, x: Tensor) -> tuple[int, int]:
        """Size of the token map of an input, which must divide into patches. x: (B, ..., H, W)."""
        height, width = x.shape[-2:]
        if self.stride < 1:  # several tokens for each position
            finer = round(1 / self.stride)
            return finer * height, finer * width
        return patch_grid((height, width), int(self.stride))

    def forward(self, x: Tensor) -> Tensor:
        """Returns (B, D, h, w)."""
        raise NotImplementedError


@dataclass(frozen=True)
class StemConfig:
    """Settings of a stem; the name picks it."""

    choices: ClassVar[Registry[type[StemConfig]]] = Registry("stem")

    def build(self, channels: int, grid: tuple[int, int], width: int) -> Stem:
        """The stem for an input of `channels` on `grid`."""
        raise NotImplementedError


class UnevenGridError(ConfigError, RuntimeError):
    """A size that does not divide into patches; also a RuntimeError, as torch's own for tensors that do not fit."""


def patch_grid(grid: tuple[int, int], patch: int) -> tuple[int, int]:
    """Patches on each side of an input, which must divide into them."""
    if grid[0] % patch or grid[1] % patch:
        raise UnevenGridError(f"a grid of {grid[0]}x{grid[1]} does not divide into patches of {patch}", "change a size")
    return grid[0] // patch, grid[1] // patch


class PatchStem(Stem):
    """Pixels to tokens by one linear map per patch (ViT)."""

    takes: Stage = "pixels"

    def __init__(self, channels: int, grid: tuple[int, int], width: int, patch: int) -> None:
        super().__init__(patch_grid(grid, patch), width, patch)
        self.proj = nn.Conv2d(channels, width, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:  # (B, 3, H, W)
        """Returns (B, D, h, w)."""
        return self.proj(x)


@StemConfig.choices.add("patch")
@dataclass(frozen=True)
class PatchStemConfig(StemConfig):
    """Non-overlapping patches of pixels."""

    patch: int = 16

    def build(self, channels: int, grid: tuple[int, int], width: int) -> Stem:
        """The stem for an image of `grid` pixels."""
        return PatchStem(channels, grid, width, self.patch)


class ConvStem(Stem):
    """Pixels to tokens by several convolutions, all but the last with batch norm and ReLU (LV-ViT)."""

    takes: Stage = "pixels"

    def __init__(self, channels: int, grid: tuple[int, int], width: int, config: ConvStemConfig) -> None:
        super().__init__(patch_grid(grid, prod(config.strides)), width, prod(config.strides))
        layers = []
        for kernel, stride in zip(config.kernels[:-1], config.strides[:-1], strict=True):
            conv = nn.Conv2d(channels, config.filters, kernel, stride, kernel // 2, bias=False)
            layers += [conv, nn.BatchNorm2d(config.filters), nn.ReLU(inplace=True)]
            channels = config.filters
        self.convs = nn.Sequential(*layers)
        last, step = config.kernels[-1], config.strides[-1]
        self.proj = nn.Conv2d(channels, width, last, step, (last - step + 1) // 2)

    def forward(self, x: Tensor) -> Tensor:  # (B, 3, H, W)
        """Returns (B, D, h, w)."""
        return self.proj(self.convs(x))


@StemConfig.choices.add("conv")
@dataclass(frozen=True)
class ConvStemConfig(StemConfig):
    """LV-ViT's four convolutions; other rows of its ablation by other kernels and strides."""

    kernels: tuple[int, ...] = (7, 3, 3, 8)
    strides: tuple[int, ...] = (2, 1, 1, 8)
    filters: int = 64

    def __post_init__(self) -> None:
        if not self.kernels or len(self.kernels) != len(self.strides) or min(*self.kernels, *self.strides, 1) < 1:
            raise ValueError(f"kernels {self.kernels} and strides {self.strides} do not belong together")

    def build(self, channels: int, grid: tuple[int, int], width: int) -> Stem:
        """The stem for an image of `grid` pixels."""
        return ConvStem(channels, grid, width, self)


class OverlapStem(Stem):
    """Pixels to tokens by windows that reach into the next patches: 2 patch - 1 wide (PVTv2)."""

    takes: Stage = "pixels"

    def __init__(self, channels: int, grid: tuple[int, int], width: int, patch: int) -> None:
        super().__init__(patch_grid(grid, patch), width, patch)
        self.proj = nn.Conv2d(channels, width, 2 * patch - 1, stride=patch, padding=patch - 1)

    def forward(self, x: Tensor) -> Tensor:  # (B, 3, H, W)
        """Returns (B, D, h, w)."""
        return self.proj(x)


@StemConfig.choices.add("overlap")
@dataclass(frozen=True)
class OverlapStemConfig(StemConfig):
    """PVTv2's overlapping patches."""

    patch: int = 4

    def build(self, channels: int, grid: tuple[int, int], width: int) -> Stem:
        """The stem for an image of `grid` pixels."""
        return OverlapStem(channels, grid, width, self.patch)


class TokenStem(Stem):
    """Code map to tokens with overlapping 4x4 windows (SeiT, Stem-Adapter)."""

    takes: Stage = "map"

    def __init__(self, code_dim: int, grid: tuple[int, int], width: int) -> None:
        if grid[0] % 2 or grid[1] % 2:
            hint = "crop it, or use a recipe for such codes: linear_cpu takes any, teacher_vit_cpu 7x7"
            if grid == (1, 1):
                hint = "pooled codes have no positions: use linear_cpu, or tokenize with a tokenizer of your own"
            raise ConfigError(f"a code grid of {grid[0]}x{grid[1]} has no even sides, which this stem needs", hint)
        super().__init__((grid[0] // 2, grid[1] // 2), width, stride=2)
        self.proj = nn.Conv2d(code_dim, width, kernel_size=4, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W)
        """Returns (B, D, H/2, W/2)."""
        return self.proj(x)


@StemConfig.choices.add("token")
@dataclass(frozen=True)
class TokenStemConfig(StemConfig):
    """SeiT's Stem-Adapter."""

    def build(self, channels: int, grid: tuple[int, int], width: int) -> Stem:
        """The stem for codes of `channels` dimensions on `grid`."""
        return TokenStem(channels, grid, width)


class TokenPatchStem(PatchStem):
    """Code map to tokens by one linear map per patch of codes: no token knows of its neighbours' codes (SeiT++)."""

    takes: Stage = "map"


@StemConfig.choices.add("token_patch")
@dataclass(frozen=True)
class TokenPatchStemConfig(StemConfig):
    """Non-overlapping patches of codes, for masked token modelling."""

    patch: int = 2

    def build(self, channels: int, grid: tuple[int, int], width: int) -> Stem:
        """The stem for codes of `channels` dimensions on `grid`."""
        return TokenPatchStem(channels, grid, width, self.patch)


class TokenF16Stem(Stem):
    """Code map of an f16 tokenizer to tokens, one per code, with 2x2 windows.

    A row below and a column on the right are padded with zeros, so that the grid is kept: our choice.
    """

    takes: Stage = "map"

    def __init__(self, code_dim: int, grid: tuple[int, int], width: int) -> None:
        super().__init__(grid, width)
        self.proj = nn.Conv2d(code_dim, width, kernel_size=2)

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W)
        """Returns (B, D, H, W)."""
        return self.proj(F.pad(x, (0, 1, 0, 1)))


@StemConfig.choices.add("token_f16")
@dataclass(frozen=True)
class TokenF16StemConfig(StemConfig):
    """The Stem-Adapter for codes that stand for 16 px each."""

    def build(self, channels: int, grid: tuple[int, int], width: int) -> Stem:
        """The stem for codes of `channels` dimensions on `grid`."""
        return TokenF16Stem(channels, grid, width)


class TokenFineStem(Stem):
    """Code map to tokens on a grid twice as fine, with overlapping 4x4 windows: the Stem-Adapter turned around.

    For pyramids: their first stage has a token for every 4 px, a code of an f8 tokenizer stands for 8. Our choice.
    """

    takes: Stage = "map"

    def __init__(self, code_dim: int, grid: tuple[int, int], width: int) -> None:
        super().__init__((2 * grid[0], 2 * grid[1]), width, stride=0.5)
        self.proj = nn.ConvTranspose2d(code_dim, width, kernel_size=4, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W)
        """Returns (B, D, 2H, 2W)."""
        return self.proj(x)


@StemConfig.choices.add("token_fine")
@dataclass(frozen=True)
class TokenFineStemConfig(StemConfig):
    """A grid of tokens twice as fine as that of the codes, for Swin, PVT and ConvNeXt."""

    def build(self, channels: int, grid: tuple[int, int], width: int) -> Stem:
        """The stem for codes of `channels` dimensions on `grid`."""
        return TokenFineStem(channels, grid, width)
