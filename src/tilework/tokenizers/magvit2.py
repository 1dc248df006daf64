"""Open-MAGVIT2: convolutions around lookup-free quantisation (Luo et al., 2024).

The decoder's levels are normalised with the mean and deviation of the codes of the whole image. Parameter names are
those of the published checkpoints, which hold no codebook: a code is the signs of the encoder's channels. Images go in
as [-1, 1]. Loading such checkpoints was never tried on real weights: none were at hand.

B batch | H, W pixels | h, w code grid | D width | C bits
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from tilework.models.model import ModelConfig
from tilework.tokenizers.lfq import LfqQuantiser
from tilework.tokenizers.shapes import Shapes, count_of
from tilework.tokenizers.tokenizer import Tokenizer
from tilework.tokenizers.vqgan import GROUPS, check_widths


@ModelConfig.choices.add("magvit2")
@dataclass(frozen=True)
class Magvit2Config(ModelConfig):
    """Settings of Open-MAGVIT2; the defaults are those of f16 with 262,144 codes."""

    width: int = 128  # channels at full resolution
    multiples: tuple[int, ...] = (1, 1, 2, 2, 4)  # of the width at each level; all but the last halve the sides
    blocks: int = 4  # residual blocks at each level, and in the middle
    bits: int = 18

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> Magvit2:
        """The tokenizer; images may have any size that is a multiple of the patch."""
        return Magvit2(self)


class Magvit2(Tokenizer):
    """Encoder, signs, decoder."""

    def __init__(self, config: Magvit2Config) -> None:
        super().__init__()
        self.config = config
        self.patch = 2 ** (len(config.multiples) - 1)
        self.quantiser = LfqQuantiser(config.bits)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)

    def features(self, pixels: Tensor) -> Tensor:
        """pixels: (B, 3, H, W) in [0, 1]; returns (B, h, w, C)."""
        return self.encoder(2 * pixels - 1).permute(0, 2, 3, 1)

    def pixels(self, vectors: Tensor) -> Tensor:
        """vectors: (B, h, w, C); returns (B, 3, H, W)."""
        return (self.decoder(vectors.permute(0, 3, 1, 2)) + 1) / 2


class Residual(nn.Module):
    """Two normalised convolutions without bias, and a shortcut."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(GROUPS, inner, eps=1e-6)
        self.conv1 = nn.Conv2d(inner, outer, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(GROUPS, outer, eps=1e-6)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.nin_shortcut = nn.Identity() if inner == outer else nn.Conv2d(inner, outer, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, inner, H, W); returns (B, outer, H, W)."""
        y = self.conv1(F.silu(self.norm1(x)))
        return self.nin_shortcut(x) + self.conv2(F.silu(self.norm2(y)))


class Level(nn.Module):
    """Residual blocks of one resolution."""

    def __init__(self, inner: int, outer: int, blocks: int) -> None:
        super().__init__()
        self.block = nn.ModuleList(Residual(inner if i == 0 else outer, outer) for i in range(blocks))
        self.downsample: nn.Module = nn.Identity()
        self.upsample: nn.Module = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, inner, H, W); returns (B, outer, ., .), halved or doubled where the level says so."""
        return self.upsample(self.downsample(nn.Sequential(*self.block)(x)))


class DepthToSpace(nn.Module):
    """Double the sides: four times the channels, the position in a 2x2 block before the channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, 4 * width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, D, H, W) to (B, D, 2H, 2W)."""
        batch, width, height, columns = x.shape
        y = self.conv1(x).view(batch, 2, 2, width, height, columns).permute(0, 3, 4, 1, 5, 2)
        return y.reshape(batch, width, 2 * height, 2 * columns)


class CodeNorm(nn.Module):
    """Groups normalised, then scaled and shifted by what the codes of the image say."""

    def __init__(self, bits: int, width: int) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Linear(bits, width), nn.Linear(bits, width)

    def forward(self, x: Tensor, codes: Tensor) -> Tensor:
        """x: (B, D, H, W); codes: (B, C, h, w)."""
        flat = codes.flatten(2)
        scale, shift = self.gamma((flat.var(-1) + 1e-6).sqrt()), self.beta(flat.mean(-1))  # (B, D)
        return scale[:, :, None, None] * F.group_norm(x, GROUPS, eps=1e-6) + shift[:, :, None, None]


class Encoder(nn.Module):
    """Pixels to channels whose signs are the code."""

    def __init__(self, config: Magvit2Config) -> None:
        super().__init__()
        sizes = check_widths(config.width, config.multiples)
        self.conv_in = nn.Conv2d(3, config.width, 3, padding=1, bias=False)
        self.down = nn.ModuleList()
        for i, (inner, outer) in enumerate(zip([config.width, *sizes], sizes, strict=False)):
            level = Level(inner, outer, config.blocks)
            if i < len(sizes) - 1:
                level.downsample = nn.Conv2d(outer, outer, 3, stride=2, padding=1)
            self.down.append(level)
        self.mid_block = nn.ModuleList(Residual(sizes[-1], sizes[-1]) for _ in range(config.blocks))
        self.norm_out = nn.GroupNorm(GROUPS, sizes[-1], eps=1e-6)
        self.conv_out = nn.Conv2d(sizes[-1], config.bits, 1)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, 3, H, W) in [-1, 1]; returns (B, C, h, w)."""
        x = self.conv_in(x)
        for level in self.down:
            x = level(x)
        return self.conv_out(F.silu(self.norm_out(nn.Sequential(*self.mid_block)(x))))


class Decoder(nn.Module):
    """Signs to pixels; levels are numbered by resolution, so the last one runs first."""

    def __init__(self, config: Magvit2Config) -> None:
        super().__init__()
        sizes = check_widths(config.width, config.multiples)
        self.conv_in = nn.Conv2d(config.bits, sizes[-1], 3, padding=1)
        self.mid_block = nn.ModuleList(Residual(sizes[-1], sizes[-1]) for _ in range(config.blocks))
        self.up, self.adaptive = nn.ModuleList(), nn.ModuleList()
        for i, (inner, outer) in enumerate(zip([*sizes[1:], sizes[-1]], sizes, strict=True)):
            self.adaptive.append(CodeNorm(config.bits, inner))
            level = Level(inner, outer, config.blocks)
            if i > 0:
                level.upsample = DepthToSpace(outer)
            self.up.append(level)
        self.norm_out = nn.GroupNorm(GROUPS, sizes[0], eps=1e-6)
        self.conv_out = nn.Conv2d(sizes[0], 3, 3, padding=1)

    def forward(self, codes: Tensor) -> Tensor:
        """codes: (B, C, h, w), each -1 or 1; returns (B, 3, H, W), about [-1, 1]."""
        x = nn.Sequential(*self.mid_block)(self.conv_in(codes))
        for norm, level in zip(reversed(self.adaptive), reversed(self.up), strict=True):
            x = level(norm(x, codes))
        return self.conv_out(F.silu(self.norm_out(x)))


def config_of(keys: Shapes) -> Magvit2Config:
    """The settings that a checkpoint's shapes imply. keys: name to shape."""
    levels = count_of(keys, "encoder.down.{}.block.0.conv1.weight")
    width = keys["encoder.conv_in.weight"][0]
    return Magvit2Config(
        width=width,
        multiples=tuple(keys[f"encoder.down.{i}.block.0.conv1.weight"][0] // width for i in range(levels)),
        blocks=count_of(keys, "encoder.mid_block.{}.conv1.weight"),
        bits=keys["encoder.conv_out.weight"][0],
    )
