"""Residual quantisation from coarse to fine, on maps of growing size (VAR, Tian et al., 2024; algorithms 1 and 2).

B batch | h, w finest map | C code dim | K codes | S scales | T = sum of s s over the scales s
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.errors import ConfigError
from tilework.tokenizers.quantise import NearestQuantiser, Quantised

SHARE = 0.5  # of the convolution in what a map of codes adds; the rest is the map itself


class PyramidQuantiser(NearestQuantiser):
    """One codebook for all scales; each map of codes says what those before it left, after a convolution of it."""

    def __init__(self, codes: int, code_dim: int, scales: tuple[int, ...], convolutions: int = 4) -> None:
        super().__init__(codes, code_dim)
        if not scales or min(scales) < 1 or max(scales) != scales[-1] or convolutions < 1:
            raise ConfigError(f"scales of {scales} with {convolutions} convolutions", "end with the largest scale")
        self.scales = scales
        self.convolutions = nn.ModuleList(nn.Conv2d(code_dim, code_dim, 3, padding=1) for _ in range(convolutions))

    @property
    def length(self) -> int:
        """Codes of an image."""
        return sum(scale * scale for scale in self.scales)

    def _convolution(self, number: int) -> nn.Module:
        """Neighbouring scales share a convolution: the one whose position lies nearest, on a line from 0 to 1.

        Some scales lie half-way between two; rounding decides, so this is computed as it was published.
        """
        count = len(self.convolutions)
        margin = 1 / 3 / count if count == 4 else 1 / 2 / count
        places = np.linspace(margin, 1 - margin, count)
        return self.convolutions[int(np.abs(places - number / max(1, len(self.scales) - 1)).argmin())]

    def _added(self, number: int, vectors: Tensor) -> Tensor:
        """What the map of a scale adds to the finest one. vectors: (B, s, s, C); returns (B, C, h, w)."""
        x, edge = vectors.permute(0, 3, 1, 2), self.scales[-1]
        if number < len(self.scales) - 1:
            x = F.interpolate(x, (edge, edge), mode="bicubic")
        return (1 - SHARE) * x + SHARE * self._convolution(number)(x)

    def _split(self, sequence: Tensor) -> list[Tensor]:
        """(B, T, ...) as a list of (B, s, s, ...)."""
        parts = sequence.split([scale * scale for scale in self.scales], 1)
        return [part.unflatten(1, (scale, scale)) for part, scale in zip(parts, self.scales, strict=True)]

    def nearest(self, features: Tensor) -> Tensor:
        """Maps of codes one after another, the coarsest first. features: (B, h, w, C); returns (B, T) int64."""
        left, ids = features.permute(0, 3, 1, 2), []
        for number, scale in enumerate(self.scales):
            seen = left if number == len(self.scales) - 1 else F.adaptive_avg_pool2d(left, scale)
            found = super().nearest(seen.permute(0, 2, 3, 1))
            left = left - self._added(number, self.codebook[found])
            ids.append(found.flatten(1))
        return torch.cat(ids, 1)

    def sum(self, vectors: Tensor) -> Tensor:
        """What the codes of all scales stand for together. vectors: (B, T, C); returns (B, h, w, C)."""
        parts = [self._added(number, part) for number, part in enumerate(self._split(vectors))]
        return torch.stack(parts).sum(0).permute(0, 2, 3, 1)

    def nearest_of(self, features: Tensor, codes: Tensor) -> Tensor:
        """Codes of a pyramid have no positions of their own."""
        raise ConfigError("codes of several scales cannot be chosen one by one", "use a tokenizer with a grid of codes")

    def continuous(self, features: Tensor) -> Tensor:
        """Several codes stand for a vector together, none for a part of it."""
        raise ConfigError("these codes are sums: gradients of one are not defined", "attack with square or random")

    def forward(self, features: Tensor) -> Quantised:
        """features: (B, h, w, C); the losses count every partial sum, as published. ids: (B, T)."""
        ids = self.nearest(features.detach())
        vectors = F.embedding(ids, self.codebook)
        added = [self._added(number, part) for number, part in enumerate(self._split(vectors))]
        partial = torch.stack(added).cumsum(0).permute(0, 1, 3, 4, 2)  # (S, B, h, w, C)
        codebook = (partial - features.detach()).square().mean()
        commitment = (partial.detach() - features).square().mean()
        return Quantised(ids, features + (partial[-1] - features).detach(), codebook, commitment)
