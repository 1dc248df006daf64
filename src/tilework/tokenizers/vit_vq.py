"""A small ViT-VQ for CPUs: a straight linear way from patch to code and back, and a thin network beside it.

The linear way starts as the principal components of patches, the codes as their k-means, and the networks' last layers
at zero: training begins at the quality of k-means on patches, which small networks do not reach from noise in minutes,
and only gets better. The rest follows ViT-VQGAN (Yu et al., 2022), with convolutions instead of attention unless told
otherwise: on two cores they take a third of the time of a step and learn more in it (docs/results.md).

B batch | H, W pixels | h, w code grid | N = h w | D width | K codes | C code dim | p patch
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.errors import ConfigError
from tilework.layers.block import Block
from tilework.layers.conv_block import ConvBlock
from tilework.layers.positions import sincos_positions
from tilework.models.model import ModelConfig
from tilework.tokenizers.fsq import FsqQuantiser
from tilework.tokenizers.lfq import LfqQuantiser
from tilework.tokenizers.quantise import NearestQuantiser, Quantiser
from tilework.tokenizers.tokenizer import Tokenizer


@ModelConfig.choices.add("vit_vq")
@dataclass(frozen=True)
class VitVqConfig(ModelConfig):
    """Settings of the small ViT-VQ."""

    patch: int = 8
    codes: int = 512
    code_dim: int = 32
    width: int = 128
    depth: int = 2  # blocks of the encoder, and of the decoder
    heads: int = 4  # of attention; groups of the convolutions' norm
    mixing: Literal["convolution", "attention"] = "convolution"  # how patches see each other
    cosine: bool = False  # codes by cosine instead of distance
    quantiser: Literal["nearest", "fsq", "lfq"] = "nearest"  # a learnt codebook, rounded channels, signs
    levels: tuple[int, ...] = ()  # of each channel of FSQ: code_dim of them, whose product is codes

    def __post_init__(self) -> None:
        if min(self.patch, self.codes, self.code_dim, self.width, self.heads) < 1 or self.depth < 0:
            raise ValueError("patch, codes, code_dim, width and heads must be at least 1, and depth not negative")

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> VitVq:
        """The tokenizer; images may have any size that is a multiple of the patch."""
        return VitVq(self)


def _quantiser(config: VitVqConfig) -> Quantiser:
    """The quantiser of some settings, whose numbers must agree."""
    if config.quantiser == "nearest":
        found = NearestQuantiser(config.codes, config.code_dim, "cosine" if config.cosine else "distance")
        nn.init.normal_(found.table)
        return found
    if config.cosine:
        raise ConfigError(f"quantiser '{config.quantiser}' has no cosine", "set model.cosine=false")
    if config.quantiser == "lfq":
        if config.codes != 2**config.code_dim:
            raise ConfigError(f"{config.codes} codes of {config.code_dim} signs", "set model.codes to 2^code_dim")
        return LfqQuantiser(config.code_dim)
    if (len(config.levels), prod(config.levels)) != (config.code_dim, config.codes):
        raise ConfigError(
            f"levels {config.levels} for {config.codes} codes of {config.code_dim} dims",
            "set model.code_dim to their number, model.codes to their product",
        )
    return FsqQuantiser(config.levels)


class VitVq(Tokenizer):
    """Patches to codes and back, by a linear map plus what a few blocks add to it."""

    def __init__(self, config: VitVqConfig) -> None:
        super().__init__()
        self.config = config
        self.patch = config.patch
        width, values = config.width, 3 * config.patch**2
        self.straight_in = nn.Conv2d(3, config.code_dim, config.patch, stride=config.patch)
        self.embed = nn.Conv2d(3, width, config.patch, stride=config.patch)
        block = Block if config.mixing == "attention" else ConvBlock
        self.encoder = nn.ModuleList(block(width, config.heads) for _ in range(config.depth))
        self.to_code = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, config.code_dim))
        self.quantiser = _quantiser(config)
        self.straight_out = nn.Linear(config.code_dim, values)
        self.from_code = nn.Linear(config.code_dim, width)
        self.decoder = nn.ModuleList(block(width, config.heads) for _ in range(config.depth))
        self.to_pixels = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, values))
        for last in (self.to_code[1], self.to_pixels[1]):
            nn.init.zeros_(last.weight)  # type: ignore[arg-type]
            nn.init.zeros_(last.bias)  # type: ignore[arg-type]

    @torch.no_grad()
    def start(self, pixels: Tensor) -> None:
        """The linear way becomes the principal components of these patches. pixels: (B, 3, H, W) in [0, 1]."""
        patches = F.unfold(pixels.float(), self.patch, stride=self.patch).transpose(1, 2).flatten(0, 1)  # (P, 3 p p)
        mean = patches.mean(0)
        centred = patches - mean
        directions = torch.linalg.eigh(centred.T @ centred)[1].flip(1)[:, : self.config.code_dim].T  # (C, 3 p p)
        spread = centred @ directions.T  # code vectors of about unit size; every channel where each is rounded
        scale = (spread.std() if self.config.quantiser == "nearest" else spread.std(0)[:, None]).clamp(min=1e-6)
        count = len(directions)
        for parameter in (*self.straight_in.parameters(), *self.straight_out.parameters()):
            parameter.zero_()
        self.straight_in.weight.flatten(1)[:count] = directions / scale
        self.straight_in.bias[:count] = -(directions / scale) @ mean  # type: ignore[index]
        self.straight_out.weight[:, :count] = (directions * scale).T
        self.straight_out.bias.copy_(mean)

    @property
    def last_layer(self) -> Tensor:
        """Of the decoder."""
        return self.to_pixels[1].weight  # type: ignore[return-value]

    def features(self, pixels: Tensor) -> Tensor:
        """pixels: (B, 3, H, W) in [0, 1]; returns (B, h, w, C), of unit length where codes go by cosine."""
        x = self.embed(2 * pixels - 1).permute(0, 2, 3, 1)  # (B, h, w, D)
        x = self.straight_in(pixels).permute(0, 2, 3, 1) + self.to_code(self._blocks(self.encoder, x))
        return F.normalize(x, dim=-1) if self.config.cosine else x

    def pixels(self, vectors: Tensor) -> Tensor:
        """vectors: (B, h, w, C); returns (B, 3, H, W)."""
        x = self.straight_out(vectors) + self.to_pixels(self._blocks(self.decoder, self.from_code(vectors)))
        batch, height, width, _ = x.shape  # (B, h, w, 3 p p)
        x = x.view(batch, height, width, 3, self.patch, self.patch).permute(0, 3, 1, 4, 2, 5)
        return x.reshape(batch, 3, height * self.patch, width * self.patch)

    def _blocks(self, blocks: nn.ModuleList, x: Tensor) -> Tensor:
        batch, height, width, channels = x.shape
        if self.config.mixing == "convolution":
            return nn.Sequential(*blocks)(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        tokens = x.reshape(batch, height * width, channels)
        tokens = tokens + sincos_positions(channels, height, width).to(tokens)
        for attention in blocks:
            tokens, _ = attention(tokens)
        return tokens.view(batch, height, width, channels)
