"""Decode, augment, encode: what TokenAdapt replaces, at the cost of a tokenizer in every step (SeiT++, table B).

n samples | C code dim | H, W code grid | h, w output grid | K codes
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.augment.affine import warp
from tilework.augment.augment import Augment
from tilework.augment.token_adapt import LikePixels, Mover
from tilework.core.artefact import artefact
from tilework.core.batch import Mix, Stage
from tilework.core.codebook import Codebook
from tilework.tokenizers.tokenizer import Tokenizer, decoder_of


@dataclass(frozen=True)
class ThroughPixels:
    """A tokenizer with its codes cut to those of the data."""

    tokenizer: Tokenizer
    used: Tensor  # (K,) their numbers in the tokenizer

    @torch.no_grad()
    def __call__(self, z: Tensor, affine: Tensor, size: tuple[int, int], mix: Mix | None = None) -> Tensor:
        """Codes of the augmented pictures of code vectors. z: (n, C, H, W); affine: (n, 2, 3); returns (n, h, w)."""
        patch = self.tokenizer.patch
        pixels = self.tokenizer.pixels(z.permute(0, 2, 3, 1)).clamp(0, 1)  # (n, 3, H p, W p)
        return self.codes(mixed(warp(pixels, affine, (size[0] * patch, size[1] * patch)), mix))

    def codes(self, pixels: Tensor) -> Tensor:
        """The code of the data that lies nearest at each position, (n, h, w)."""
        return self.tokenizer.quantiser.nearest_of(self.tokenizer.features(pixels), self.used)


def mixed(pixels: Tensor, mix: Mix | None) -> Tensor:
    """Mix pictures; boxes end where they do on the coarser grid of the mixture. pixels: (n, 3, H, W)."""
    if mix is None:
        return pixels
    own = F.interpolate(mix.own[:, None], pixels.shape[2:], mode="nearest")[:, 0]
    return Mix(mix.partner, own).apply(pixels)


@Augment.choices.add("decode_encode")
@dataclass(frozen=True)
class DecodeEncode(LikePixels):
    """A share of every batch decoded, augmented as pixels, and encoded again."""

    stages: ClassVar[tuple[Stage, ...]] = ("ids",)
    tokenizer: str = artefact("tokenizer")  # directory

    def mover(self, codebook: Codebook, device: torch.device) -> Mover:
        """The tokenizer."""
        tokenizer, used = decoder_of(Path(self.tokenizer), codebook)
        return ThroughPixels(tokenizer.to(device), used.to(device))
