"""MaskGIT's VQGAN: convolutions without attention, averages for halving (Chang et al., 2022).

Parameter names are those of the public PyTorch weights (open-muse, 1d-tokenizer), the quantiser's aside. As there, the
shortcut of a block that changes its width takes the block's own output, not its input. Images are in [0, 1].
Loading such checkpoints was never tried on real weights: none were at hand.

B batch | H, W pixels | h, w code grid | C code dim | K codes
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from tilework.models.model import ModelConfig
from tilework.tokenizers.quantise import NearestQuantiser
from tilework.tokenizers.shapes import Shapes, count_of
from tilework.tokenizers.tokenizer import Tokenizer
from tilework.tokenizers.vqgan import GROUPS, check_widths


@ModelConfig.choices.add("maskgit_vq")
@dataclass(frozen=True)
class MaskgitVqConfig(ModelConfig):
    """Settings of MaskGIT's tokenizer; the defaults are those of f16 with 1,024 codes."""

    width: int = 128  # channels at full resolution
    multiples: tuple[int, ...] = (1, 1, 2, 2, 4)  # of the width at each level; all but the last halve the sides
    blocks: int = 2  # residual blocks at each level, and in the middle
    codes: int = 1024
    code_dim: int = 256

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> MaskgitVq:
        """The tokenizer; images may have any size that is a multiple of the patch."""
        return MaskgitVq(self)


class MaskgitVq(Tokenizer):
    """Encoder, quantiser, decoder."""

    def __init__(self, config: MaskgitVqConfig) -> None:
        super().__init__()
        self.config = config
        self.patch = 2 ** (len(config.multiples) - 1)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.quantiser = NearestQuantiser(config.codes, config.code_dim)

    def features(self, pixels: Tensor) -> Tensor:
        """pixels: (B, 3, H, W) in [0, 1]; returns (B, h, w, C)."""
        return self.encoder(pixels).permute(0, 2, 3, 1)

    def pixels(self, vectors: Tensor) -> Tensor:
        """vectors: (B, h, w, C); returns (B, 3, H, W)."""
        return self.decoder(vectors.permute(0, 3, 1, 2))


class Residual(nn.Module):
    """Two normalised convolutions without bias."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(GROUPS, inner, eps=1e-6)
        self.conv1 = nn.Conv2d(inner, outer, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(GROUPS, outer, eps=1e-6)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        if inner != outer:
            self.nin_shortcut = nn.Conv2d(outer, outer, 1, bias=False)
        self.same = inner == outer

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, inner, H, W); returns (B, outer, H, W)."""
        y = self.conv1(F.silu(self.norm1(x)))
        y = self.conv2(F.silu(self.norm2(y)))
        return y + (x if self.same else self.nin_shortcut(y))


class Level(nn.Module):
    """Residual blocks of one resolution, and a convolution after doubling where asked for."""

    def __init__(self, inner: int, outer: int, blocks: int, doubles: bool = False) -> None:
        super().__init__()
        self.block = nn.ModuleList(Residual(inner if i == 0 else outer, outer) for i in range(blocks))
        if doubles:
            self.upsample_conv = nn.Conv2d(outer, outer, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, inner, H, W); returns (B, outer, H, W) or (B, outer, 2H, 2W)."""
        x = nn.Sequential(*self.block)(x)
        if hasattr(self, "upsample_conv"):
            return self.upsample_conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return x


class Encoder(nn.Module):
    """Pixels to features."""

    def __init__(self, config: MaskgitVqConfig) -> None:
        super().__init__()
        sizes = check_widths(config.width, config.multiples)
        self.conv_in = nn.Conv2d(3, config.width, 3, padding=1, bias=False)
        levels = zip([config.width, *sizes], sizes, strict=False)
        self.down = nn.ModuleList(Level(inner, outer, config.blocks) for inner, outer in levels)
        self.mid = nn.ModuleList(Residual(sizes[-1], sizes[-1]) for _ in range(config.blocks))
        self.norm_out = nn.GroupNorm(GROUPS, sizes[-1], eps=1e-6)
        self.conv_out = nn.Conv2d(sizes[-1], config.code_dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, 3, H, W); returns (B, C, h, w)."""
        x = self.conv_in(x)
        for i, level in enumerate(self.down):
            x = level(x) if i == len(self.down) - 1 else F.avg_pool2d(level(x), 2)
        return self.conv_out(F.silu(self.norm_out(nn.Sequential(*self.mid)(x))))


class Decoder(nn.Module):
    """Code vectors to pixels; levels are numbered by resolution, so the last one runs first."""

    def __init__(self, config: MaskgitVqConfig) -> None:
        super().__init__()
        sizes = check_widths(config.width, config.multiples)
        self.conv_in = nn.Conv2d(config.code_dim, sizes[-1], 3, padding=1)
        self.mid = nn.ModuleList(Residual(sizes[-1], sizes[-1]) for _ in range(config.blocks))
        levels = zip([*sizes[1:], sizes[-1]], sizes, strict=True)
        self.up = nn.ModuleList(Level(inner, outer, config.blocks, i > 0) for i, (inner, outer) in enumerate(levels))
        self.norm_out = nn.GroupNorm(GROUPS, sizes[0], eps=1e-6)
        self.conv_out = nn.Conv2d(sizes[0], 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, C, h, w); returns (B, 3, H, W), about [0, 1]."""
        x = nn.Sequential(*self.mid, *reversed(self.up))(self.conv_in(x))
        return self.conv_out(F.silu(self.norm_out(x)))


def config_of(keys: Shapes, decoder: str = "decoder", codebook: str = "quantiser.embedding.weight") -> MaskgitVqConfig:
    """The settings that a decoder's shapes imply. keys: name to shape."""
    levels = count_of(keys, decoder + ".up.{}.block.0.conv1.weight")
    width = keys[f"{decoder}.up.0.block.0.conv1.weight"][0]
    codes, code_dim = keys[codebook]
    return MaskgitVqConfig(
        width=width,
        multiples=tuple(keys[f"{decoder}.up.{i}.block.0.conv1.weight"][0] // width for i in range(levels)),
        blocks=count_of(keys, decoder + ".mid.{}.conv1.weight"),
        codes=codes,
        code_dim=code_dim,
    )
