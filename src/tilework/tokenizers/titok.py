"""TiTok: an image as a short sequence of codes, read and drawn by transformers (Yu et al., 2024).

A code stands for no position: learnt queries beside the patches gather the image. The first models (L-32, B-64, S-128)
choose unit codes, predict MaskGIT's codes and draw those; later ones (vq8k) draw pixels themselves. Parameter names are
those of the published checkpoints, the quantiser's aside. As there, the first models read the queries' channels as if
positions and channels were exchanged in memory. Heads have 64 channels, which shapes do not say. Images are in [0, 1].
Loading such checkpoints was never tried on real weights: none were at hand.

B batch | H, W pixels | g, g patches | N = g g | T codes of an image | D width | C code dim | K codes
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import isqrt

import torch
from torch import Tensor, nn

from tilework.core.errors import ConfigError
from tilework.models.model import ModelConfig
from tilework.tokenizers import maskgit_vq
from tilework.tokenizers.maskgit_vq import MaskgitVqConfig
from tilework.tokenizers.quantise import NearestQuantiser
from tilework.tokenizers.shapes import Shapes, count_of
from tilework.tokenizers.tokenizer import Tokenizer

HEAD = 64  # channels


@dataclass(frozen=True)
class SideConfig:
    """Encoder or decoder; the defaults are those of the large model."""

    width: int = 1024
    depth: int = 24


PAINTER = MaskgitVqConfig()
SMALL, BASE, LARGE = SideConfig(512, 8), SideConfig(768, 12), SideConfig(1024, 24)


@ModelConfig.choices.add("titok")
@dataclass(frozen=True)
class TitokConfig(ModelConfig):
    """Settings of TiTok; the defaults are those of L-32."""

    tokens: int = 32
    codes: int = 4096
    code_dim: int = 12
    grid: int = 16  # patches on each side of an image
    patch: int = 16
    encoder: SideConfig = LARGE
    decoder: SideConfig = LARGE
    painter: MaskgitVqConfig | None = PAINTER  # draws the predicted codes; none: the decoder draws pixels

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> Titok:
        """The tokenizer, for square images of one size."""
        return Titok(self)


SIZES = {
    "titok_l_32": TitokConfig(),
    "titok_b_64": TitokConfig(64, encoder=BASE, decoder=BASE),
    "titok_s_128": TitokConfig(128, encoder=SMALL, decoder=SMALL),
    "titok_bl_64_vq8k": TitokConfig(64, 8192, 64, encoder=BASE, decoder=LARGE, painter=None),
    "titok_bl_128_vq8k": TitokConfig(128, 8192, 64, encoder=BASE, decoder=LARGE, painter=None),
    "titok_sl_256_vq8k": TitokConfig(256, 8192, 64, encoder=SMALL, decoder=LARGE, painter=None),
}


class Titok(Tokenizer):
    """Encoder with learnt queries, quantiser, decoder."""

    def __init__(self, config: TitokConfig) -> None:
        super().__init__()
        self.config, self.patch, self.length = config, config.patch, config.tokens
        self.size = (config.grid * config.patch, config.grid * config.patch)
        self.sequence = f"{config.tokens} codes of the whole image"
        self.latent_tokens = nn.Parameter(torch.randn(config.tokens, config.encoder.width) / config.encoder.width**0.5)
        self.encoder = Encoder(config)
        self.quantiser = NearestQuantiser(config.codes, config.code_dim, "cosine" if config.painter else "distance")
        self.decoder = Decoder(config)
        if config.painter is not None:
            if config.patch != 2 ** (len(config.painter.multiples) - 1):
                raise ConfigError(f"patches of {config.patch} px do not fit what draws them", "change model.patch")
            self.pixel_quantize = NearestQuantiser(config.painter.codes, config.painter.code_dim)
            self.pixel_decoder = maskgit_vq.Decoder(config.painter)

    def features(self, pixels: Tensor) -> Tensor:
        """pixels: (B, 3, H, W) in [0, 1]; returns (B, T, C)."""
        return self.encoder(pixels, self.latent_tokens)

    def pixels(self, vectors: Tensor) -> Tensor:
        """vectors: (B, T, C); returns (B, 3, H, W)."""
        x = self.decoder(vectors)
        if self.config.painter is None:
            return x
        return self.pixel_decoder(torch.einsum("bkhw,kc->bchw", x.softmax(1), self.pixel_quantize.codebook))


class Block(nn.Module):
    """Attention and feed-forward layers after their norms, as CLIP names them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        if width < HEAD or width % HEAD:
            raise ConfigError(f"a width of {width}", f"a multiple of {HEAD}, the channels of a head, is needed")
        self.ln_1 = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, width // HEAD, batch_first=True)
        self.ln_2 = nn.LayerNorm(width)
        layers = {"c_fc": nn.Linear(width, 4 * width), "gelu": nn.GELU(), "c_proj": nn.Linear(4 * width, width)}
        self.mlp = nn.Sequential(OrderedDict(layers))

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, N, D)."""
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class Side(nn.Module):
    """What encoder and decoder share: positions of patches and codes, blocks between two norms."""

    def __init__(self, config: TitokConfig, side: SideConfig) -> None:
        super().__init__()
        width, scale = side.width, side.width**-0.5
        self.class_embedding = nn.Parameter(scale * torch.randn(1, width))
        self.positional_embedding = nn.Parameter(scale * torch.randn(config.grid**2 + 1, width))
        self.latent_token_positional_embedding = nn.Parameter(scale * torch.randn(config.tokens, width))
        self.ln_pre, self.ln_post = nn.LayerNorm(width), nn.LayerNorm(width)
        self.transformer = nn.ModuleList(Block(width) for _ in range(side.depth))

    def run(self, patches: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Both after the blocks. patches: (B, N, D); codes: (B, T, D)."""
        first = self.class_embedding.expand(len(patches), 1, -1)
        places = torch.cat([first, patches], 1) + self.positional_embedding
        x = self.ln_pre(torch.cat([places, codes + self.latent_token_positional_embedding], 1))
        for block in self.transformer:
            x = block(x)
        _, patches, codes = x.split([1, patches.shape[1], codes.shape[1]], 1)
        return patches, codes


class Encoder(Side):
    """Patches and queries to vectors of the queries."""

    def __init__(self, config: TitokConfig) -> None:
        super().__init__(config, config.encoder)
        width = config.encoder.width
        self.exchanged = config.painter is not None
        self.patch_embed = nn.Conv2d(3, width, config.patch, stride=config.patch)
        self.conv_out = nn.Conv2d(width, config.code_dim, 1)

    def forward(self, pixels: Tensor, queries: Tensor) -> Tensor:
        """pixels: (B, 3, H, W); queries: (T, D); returns (B, T, C)."""
        patches = self.patch_embed(pixels).flatten(2).transpose(1, 2)
        x = self.ln_post(self.run(patches, queries.expand(len(pixels), -1, -1))[1])  # (B, T, D)
        x = x.reshape(len(x), x.shape[2], x.shape[1]) if self.exchanged else x.transpose(1, 2)  # (B, D, T)
        return self.conv_out(x[..., None])[..., 0].transpose(1, 2)


class Decoder(Side):
    """Code vectors to pixels, or to scores of the painter's codes."""

    def __init__(self, config: TitokConfig) -> None:
        super().__init__(config, config.decoder)
        width, self.grid, self.patch = config.decoder.width, config.grid, config.patch
        self.decoder_embed = nn.Linear(config.code_dim, width)
        self.mask_token = nn.Parameter(torch.randn(1, 1, width) / width**0.5)
        if config.painter is None:
            self.ffn = nn.Sequential(nn.Conv2d(width, 3 * config.patch**2, 1))
            self.conv_out: nn.Module = nn.Conv2d(3, 3, 3, padding=1)
        else:
            last = nn.Conv2d(2 * width, config.painter.codes, 1)
            self.ffn = nn.Sequential(nn.Conv2d(width, 2 * width, 1), nn.Tanh(), last)

    def forward(self, vectors: Tensor) -> Tensor:
        """vectors: (B, T, C); returns (B, 3, H, W), or (B, codes of the painter, g, g)."""
        patches = self.mask_token.expand(len(vectors), self.grid**2, -1)
        x = self.ln_post(self.run(patches, self.decoder_embed(vectors))[0])  # (B, N, D)
        x = self.ffn(x.transpose(1, 2).unflatten(2, (self.grid, self.grid)))
        if not hasattr(self, "conv_out"):
            return x
        batch, g, p = len(x), self.grid, self.patch
        x = x.view(batch, p, p, 3, g, g).permute(0, 3, 4, 1, 5, 2).reshape(batch, 3, g * p, g * p)
        return self.conv_out(x)


def config_of(keys: Shapes) -> TitokConfig:
    """The settings that a checkpoint's shapes imply. keys: name to shape."""

    def side(name: str) -> SideConfig:
        depth = count_of(keys, name + ".transformer.{}.ln_1.weight")
        return SideConfig(keys[f"{name}.positional_embedding"][1], depth)

    places = keys["encoder.positional_embedding"][0] - 1
    if places < 1 or isqrt(places) ** 2 != places:
        raise ValueError(f"{places} patches make no square")
    codes, code_dim = keys["quantiser.embedding.weight"]
    legacy = "decoder.ffn.2.weight" in keys
    return TitokConfig(
        tokens=keys["latent_tokens"][0],
        codes=codes,
        code_dim=code_dim,
        grid=isqrt(places),
        patch=keys["encoder.patch_embed.weight"][-1],
        encoder=side("encoder"),
        decoder=side("decoder"),
        painter=maskgit_vq.config_of(keys, "pixel_decoder", "pixel_quantize.embedding.weight") if legacy else None,
    )
