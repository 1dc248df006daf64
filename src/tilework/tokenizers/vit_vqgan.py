"""ViT-VQGAN: transformers on both sides of a factorised, normalised codebook (Yu et al., 2022).

Feed-forward layers have a tanh between, positions are fixed sines and cosines, codes have 32 dims and unit length.
Parameter names are those of the public checkpoints (`encoder.en_pos_embedding`, `pre_quant`, ...). Images are in
[0, 1].
Loading such checkpoints was never tried on real weights: none were at hand.

B batch | H, W pixels | h, w code grid | N = h w | D width | C code dim | K codes
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.layers.positions import sincos_positions
from tilework.models.model import ModelConfig
from tilework.tokenizers.quantise import NearestQuantiser
from tilework.tokenizers.shapes import count_of
from tilework.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class TransformerConfig:
    """One side of the tokenizer."""

    width: int = 768
    depth: int = 12
    heads: int = 12
    hidden: int = 3072


@ModelConfig.choices.add("vit_vqgan")
@dataclass(frozen=True)
class VitVqganConfig(ModelConfig):
    """Settings of a ViT-VQGAN; the defaults are those of the base model."""

    patch: int = 8
    grid: tuple[int, int] = (32, 32)  # of the positions in the checkpoint; other sizes compute their own
    codes: int = 8192
    code_dim: int = 32
    encoder: TransformerConfig = TransformerConfig()
    decoder: TransformerConfig = TransformerConfig()

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> VitVqgan:
        """The tokenizer; images may have any size that is a multiple of the patch."""
        return VitVqgan(self)


SMALL = TransformerConfig(width=512, depth=8, heads=8, hidden=2048)
LARGE = TransformerConfig(width=1280, depth=32, heads=16, hidden=5120)
SIZES = {
    "vit_vqgan_small": VitVqganConfig(encoder=SMALL, decoder=SMALL),
    "vit_vqgan_base": VitVqganConfig(),
    "vit_vqgan_large": VitVqganConfig(encoder=SMALL, decoder=LARGE),
}


class VitVqgan(Tokenizer):
    """Encoder, quantiser, decoder."""

    def __init__(self, config: VitVqganConfig) -> None:
        super().__init__()
        self.config = config
        self.patch = config.patch
        self.encoder = Encoder(config)
        self.pre_quant = nn.Linear(config.encoder.width, config.code_dim)
        self.quantiser = NearestQuantiser(config.codes, config.code_dim, "cosine")
        self.post_quant = nn.Linear(config.code_dim, config.decoder.width)
        self.decoder = Decoder(config)

    @property
    def last_layer(self) -> Tensor:
        """Of the decoder."""
        return self.decoder.to_pixel[1].weight  # type: ignore[return-value]

    def features(self, pixels: Tensor) -> Tensor:
        """pixels: (B, 3, H, W) in [0, 1]; returns unit vectors (B, h, w, C)."""
        return F.normalize(self.pre_quant(self.encoder(pixels)), dim=-1)

    def pixels(self, vectors: Tensor) -> Tensor:
        """vectors: (B, h, w, C); returns (B, 3, H, W)."""
        return self.decoder(self.post_quant(vectors))


class Encoder(nn.Module):
    """Patches to vectors."""

    def __init__(self, config: VitVqganConfig) -> None:
        super().__init__()
        width = config.encoder.width
        self.to_patch_embedding = nn.Sequential(nn.Conv2d(3, width, config.patch, stride=config.patch))
        self.en_pos_embedding = nn.Parameter(sincos_positions(width, *config.grid)[None], requires_grad=False)
        self.transformer = Transformer(config.encoder)
        self.grid = config.grid

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, 3, H, W); returns (B, h, w, D)."""
        x = self.to_patch_embedding(x).permute(0, 2, 3, 1)
        return self.transformer(x, _positions(self.en_pos_embedding, self.grid, x))


class Decoder(nn.Module):
    """Vectors to patches."""

    def __init__(self, config: VitVqganConfig) -> None:
        super().__init__()
        width = config.decoder.width
        self.transformer = Transformer(config.decoder)
        self.de_pos_embedding = nn.Parameter(sincos_positions(width, *config.grid)[None], requires_grad=False)
        self.to_pixel = nn.Sequential(nn.Identity(), nn.ConvTranspose2d(width, 3, config.patch, stride=config.patch))
        self.grid = config.grid

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, h, w, D); returns (B, 3, H, W)."""
        x = self.transformer(x, _positions(self.de_pos_embedding, self.grid, x))
        return self.to_pixel(x.permute(0, 3, 1, 2))


def _positions(kept: Tensor, grid: tuple[int, int], x: Tensor) -> Tensor:
    """Those of the checkpoint on its own grid, computed ones on another. Returns (1, N, D)."""
    found = (x.shape[1], x.shape[2])
    return kept if found == grid else sincos_positions(x.shape[-1], *found)[None].to(x)


class Transformer(nn.Module):
    """Pre-norm blocks and a last norm."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [
                    PreNorm(config.width, SelfAttention(config.width, config.heads)),
                    PreNorm(config.width, FeedForward(config.width, config.hidden)),
                ]
            )
            for _ in range(config.depth)
        )
        self.norm = nn.LayerNorm(config.width)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x: (B, h, w, D); positions: (1, N, D)."""
        tokens = x.flatten(1, 2) + positions
        for layer in self.layers:
            for branch in layer:  # type: ignore[attr-defined]
                tokens = tokens + branch(tokens)
        return self.norm(tokens).view(x.shape)


class PreNorm(nn.Module):
    """A layer after its norm."""

    def __init__(self, width: int, layer: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fn = layer

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, N, D)."""
        return self.fn(self.norm(x))


class SelfAttention(nn.Module):
    """Heads of 64 channels, whatever the width."""

    def __init__(self, width: int, heads: int, head_dim: int = 64) -> None:
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(width, 3 * heads * head_dim, bias=False)
        self.to_out = nn.Linear(heads * head_dim, width)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, N, D)."""
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.to_qkv(x).chunk(3, -1))
        return self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear layers with a tanh between, as published."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, N, D)."""
        return self.net(x)


def config_of(keys: dict[str, torch.Size]) -> VitVqganConfig:
    """The settings that a checkpoint's shapes imply. keys: name to shape."""

    def side(name: str) -> TransformerConfig:
        depth = count_of(keys, name + ".transformer.layers.{}.0.norm.weight")
        hidden, width = keys[f"{name}.transformer.layers.0.1.fn.net.0.weight"]
        heads = keys[f"{name}.transformer.layers.0.0.fn.to_out.weight"][1] // 64
        return TransformerConfig(width, depth, heads, hidden)

    codes, code_dim = keys["quantiser.embedding.weight"]
    places = keys["encoder.en_pos_embedding"][1]
    edge = round(places**0.5)
    return VitVqganConfig(
        patch=keys["encoder.to_patch_embedding.0.weight"][-1],
        grid=(edge, places // edge),
        codes=codes,
        code_dim=code_dim,
        encoder=side("encoder"),
        decoder=side("decoder"),
    )
