"""A small ViT-VQ for CPUs: ViT-VQGAN's encoder, factorised cosine codebook and decoder, thin (Yu et al., 2022).

B batch | H, W pixels | h, w code grid | N = h w | D width | K codes | C code dim | p patch
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.layers.block import Block
from tilework.layers.positions import sincos_positions
from tilework.models.model import ModelConfig
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
    heads: int = 4

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> VitVq:
        """The tokenizer; images may have any size that is a multiple of the patch."""
        return VitVq(self)


class VitVq(Tokenizer):
    """Patches, a few blocks, codes by cosine; and the way back."""

    def __init__(self, config: VitVqConfig) -> None:
        super().__init__()
        self.config = config
        self.patch = config.patch
        width, values = config.width, 3 * config.patch**2
        self.embed = nn.Conv2d(3, width, config.patch, stride=config.patch)
        self.encoder = nn.ModuleList(Block(width, config.heads) for _ in range(config.depth))
        self.to_code = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, config.code_dim))
        self.codes = nn.Parameter(F.normalize(torch.randn(config.codes, config.code_dim), dim=1))
        self.from_code = nn.Linear(config.code_dim, width)
        self.decoder = nn.ModuleList(Block(width, config.heads) for _ in range(config.depth))
        self.to_pixels = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, values))

    @property
    def codebook(self) -> Tensor:
        """Unit vectors, (K, C)."""
        return F.normalize(self.codes, dim=1)

    def features(self, pixels: Tensor) -> Tensor:
        """pixels: (B, 3, H, W) in [0, 1]; returns unit vectors (B, h, w, C)."""
        x = self.embed(2 * pixels - 1)  # (B, D, h, w)
        return F.normalize(self.to_code(self._blocks(self.encoder, x.permute(0, 2, 3, 1))), dim=-1)

    def nearest(self, features: Tensor) -> Tensor:
        """The code of highest cosine. features: (..., C)."""
        return (features @ self.codebook.T).argmax(-1)

    def pixels(self, vectors: Tensor) -> Tensor:
        """vectors: (B, h, w, C); returns (B, 3, H, W)."""
        x = self.to_pixels(self._blocks(self.decoder, self.from_code(vectors)))  # (B, h, w, 3 p p)
        batch, height, width, _ = x.shape
        x = x.view(batch, height, width, 3, self.patch, self.patch).permute(0, 3, 1, 4, 2, 5)
        return (x.reshape(batch, 3, height * self.patch, width * self.patch) + 1) / 2

    def _blocks(self, blocks: nn.ModuleList, x: Tensor) -> Tensor:
        batch, height, width, channels = x.shape
        tokens = x.reshape(batch, height * width, channels)
        tokens = tokens + sincos_positions(channels, height, width).to(tokens)
        for block in blocks:
            tokens, _ = block(tokens)
        return tokens.view(batch, height, width, channels)
