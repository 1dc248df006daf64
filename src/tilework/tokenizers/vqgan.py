"""VQGAN: the convolutional tokenizer (Esser et al., 2021), with vector or Gumbel quantisation.

LlamaGen's tokenizers (Sun et al., 2024) are the same network under other names, with unit codes of 8 dims; IBQ's (Shi
et al., 2024) have four blocks a level and take the code of the largest inner product.

Parameter names are those of the published checkpoints (taming-transformers, latent diffusion), the quantiser's aside.
Images go in as [-1, 1]. Loading such checkpoints was never tried on real weights: none were at hand.

B batch | H, W pixels | h, w code grid | C code dim | K codes
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.errors import ConfigError
from tilework.models.model import ModelConfig
from tilework.tokenizers.quantise import GumbelQuantiser, Match, NearestQuantiser
from tilework.tokenizers.shapes import Shapes, count_of, renamed
from tilework.tokenizers.tokenizer import Tokenizer

GROUPS = 32
MIDDLE = ("block_1", "attn_1", "block_2")


@ModelConfig.choices.add("vqgan")
@dataclass(frozen=True)
class VqganConfig(ModelConfig):
    """Settings of a VQGAN; the defaults are those of f16 with 1,024 codes."""

    width: int = 128  # channels at full resolution
    multiples: tuple[int, ...] = (
        1,
        1,
        2,
        2,
        4,
    )  # of the width at each level; every level but the last halves the sides
    blocks: int = 2  # residual blocks at each level
    attention: tuple[int, ...] = (4,)  # levels with attention after each block
    latent: int = 256  # channels between the networks and the quantiser
    codes: int = 1024
    code_dim: int = 256
    gumbel: bool = False
    match: Match = "distance"  # how codes are chosen, unless by Gumbel's softmax

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> Vqgan:
        """The tokenizer; images may have any size that is a multiple of the patch."""
        return Vqgan(self)


class Vqgan(Tokenizer):
    """Encoder, quantiser, decoder."""

    def __init__(self, config: VqganConfig) -> None:
        super().__init__()
        check_widths(config.width, config.multiples)
        self.config = config
        self.patch = 2 ** (len(config.multiples) - 1)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        if config.gumbel:
            self.quantiser = GumbelQuantiser(config.codes, config.code_dim, config.latent)
            self.quant_conv = nn.Conv2d(config.latent, config.latent, 1)
        else:
            self.quantiser = NearestQuantiser(config.codes, config.code_dim, config.match)
            self.quant_conv = nn.Conv2d(config.latent, config.code_dim, 1)
        self.post_quant_conv = nn.Conv2d(config.code_dim, config.latent, 1)

    @property
    def last_layer(self) -> Tensor:
        """Of the decoder."""
        return self.decoder.conv_out.weight

    def features(self, pixels: Tensor) -> Tensor:
        """pixels: (B, 3, H, W) in [0, 1]; returns (B, h, w, C)."""
        return self.quant_conv(self.encoder(2 * pixels - 1)).permute(0, 2, 3, 1)

    def pixels(self, vectors: Tensor) -> Tensor:
        """vectors: (B, h, w, C); returns (B, 3, H, W)."""
        return (self.decoder(self.post_quant_conv(vectors.permute(0, 3, 1, 2))) + 1) / 2


def check_widths(width: int, multiples: tuple[int, ...]) -> list[int]:
    """Channels of each level, which must fit the groups of the norms."""
    sizes = [width * multiple for multiple in multiples]
    if not sizes or width < 1 or any(size < 1 or size % GROUPS for size in (width, *sizes)):
        raise ConfigError(f"widths of {sizes} do not split into {GROUPS} groups", "change model.width")
    return sizes


class Residual(nn.Module):
    """Two normalised convolutions and a shortcut."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(GROUPS, inner, eps=1e-6)
        self.conv1 = nn.Conv2d(inner, outer, 3, padding=1)
        self.norm2 = nn.GroupNorm(GROUPS, outer, eps=1e-6)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1)
        self.nin_shortcut = nn.Identity() if inner == outer else nn.Conv2d(inner, outer, 1)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, inner, H, W); returns (B, outer, H, W)."""
        y = self.conv1(F.silu(self.norm1(x)))
        return self.nin_shortcut(x) + self.conv2(F.silu(self.norm2(y)))


class SpatialAttention(nn.Module):
    """Single-head attention over all positions, on a residual branch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, width, eps=1e-6)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(width, width, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, D, H, W)."""
        y = self.norm(x)
        q, k, v = (layer(y).flatten(2).transpose(1, 2) for layer in (self.q, self.k, self.v))  # (B, H W, D)
        y = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return x + self.proj_out(y.transpose(1, 2).reshape(x.shape))


class Half(nn.Module):
    """Half the sides; padded below and to the right, as published."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """(B, D, H, W) to (B, D, H/2, W/2)."""
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Double(nn.Module):
    """Double the sides."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, D, H, W) to (B, D, 2H, 2W)."""
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class Level(nn.Module):
    """Residual blocks of one resolution, with attention after each where asked for."""

    def __init__(self, inner: int, outer: int, blocks: int, attention: bool) -> None:
        super().__init__()
        self.block = nn.ModuleList(Residual(inner if i == 0 else outer, outer) for i in range(blocks))
        self.attn = nn.ModuleList(SpatialAttention(outer) for _ in range(blocks if attention else 0))
        self.downsample: nn.Module = nn.Identity()
        self.upsample: nn.Module = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, inner, H, W); returns (B, outer, ., .), halved or doubled where the level says so."""
        for i, block in enumerate(self.block):
            x = block(x)
            if len(self.attn):
                x = self.attn[i](x)
        return self.upsample(self.downsample(x))


class Middle(nn.Module):
    """Block, attention, block at the lowest resolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.block_1 = Residual(width, width)
        self.attn_1 = SpatialAttention(width)
        self.block_2 = Residual(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, D, h, w)."""
        return self.block_2(self.attn_1(self.block_1(x)))


class Encoder(nn.Module):
    """Pixels to latents."""

    def __init__(self, config: VqganConfig) -> None:
        super().__init__()
        sizes = [config.width * multiple for multiple in config.multiples]
        self.conv_in = nn.Conv2d(3, config.width, 3, padding=1)
        self.down = nn.ModuleList()
        for i, (inner, outer) in enumerate(zip([config.width, *sizes], sizes, strict=False)):
            level = Level(inner, outer, config.blocks, i in config.attention)
            if i < len(sizes) - 1:
                level.downsample = Half(outer)
            self.down.append(level)
        self.mid = Middle(sizes[-1])
        self.norm_out = nn.GroupNorm(GROUPS, sizes[-1], eps=1e-6)
        self.conv_out = nn.Conv2d(sizes[-1], config.latent, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, 3, H, W) in [-1, 1]; returns (B, latent, h, w)."""
        x = self.conv_in(x)
        for level in self.down:
            x = level(x)
        return self.conv_out(F.silu(self.norm_out(self.mid(x))))


class Decoder(nn.Module):
    """Latents to pixels; levels are numbered by resolution, so the last one runs first."""

    def __init__(self, config: VqganConfig) -> None:
        super().__init__()
        sizes = [config.width * multiple for multiple in config.multiples]
        self.conv_in = nn.Conv2d(config.latent, sizes[-1], 3, padding=1)
        self.mid = Middle(sizes[-1])
        levels = []
        for i, (inner, outer) in enumerate(zip([*sizes[1:], sizes[-1]], sizes, strict=True)):
            level = Level(inner, outer, config.blocks + 1, i in config.attention)
            if i > 0:
                level.upsample = Double(outer)
            levels.append(level)
        self.up = nn.ModuleList(levels)
        self.norm_out = nn.GroupNorm(GROUPS, sizes[0], eps=1e-6)
        self.conv_out = nn.Conv2d(sizes[0], 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, latent, h, w); returns (B, 3, H, W), about [-1, 1]."""
        x = self.mid(self.conv_in(x))
        for level in reversed(self.up):
            x = level(x)
        return self.conv_out(F.silu(self.norm_out(x)))


def config_of(keys: Shapes, match: Match = "distance") -> VqganConfig:
    """The settings that a checkpoint's shapes imply. keys: name to shape."""
    levels = count_of(keys, "encoder.down.{}.block.0.conv1.weight")
    width = keys["encoder.conv_in.weight"][0]
    outer = [keys[f"encoder.down.{i}.block.0.conv1.weight"][0] for i in range(levels)]
    codes, code_dim = keys["quantiser.embedding.weight"]
    return VqganConfig(
        width=width,
        multiples=tuple(size // width for size in outer),
        blocks=count_of(keys, "encoder.down.0.block.{}.conv1.weight"),
        attention=tuple(i for i in range(levels) if f"encoder.down.{i}.attn.0.q.weight" in keys),
        latent=keys["encoder.conv_out.weight"][0],
        codes=codes,
        code_dim=code_dim,
        gumbel="quantiser.proj.weight" in keys,
        match=match,
    )


def llamagen_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """LlamaGen's tensors under the names of a VQGAN; its decoder counts levels from the lowest resolution."""
    levels = count_of(tensors, "encoder.conv_blocks.{}.res.0.conv1.weight")
    names = {
        f"{side}.mid.{i}.": f"{side}.mid.{part}." for side in ("encoder", "decoder") for i, part in enumerate(MIDDLE)
    }
    for i in range(levels):
        for inner, outer in (("res", "block"), ("attn", "attn"), ("downsample", "downsample")):
            names[f"encoder.conv_blocks.{i}.{inner}."] = f"encoder.down.{i}.{outer}."
        for inner, outer in (("res", "block"), ("attn", "attn"), ("upsample", "upsample")):
            names[f"decoder.conv_blocks.{i}.{inner}."] = f"decoder.up.{levels - 1 - i}.{outer}."
    names["quantize."] = "quantiser."
    return renamed(tensors, names, drop=("quantize.codebook_used",))
