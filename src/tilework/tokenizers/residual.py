"""Residual quantisation: each codebook codes what those before it left (RQ-VAE, Lee et al., 2022; eqs. 2-4).

... leading sides | D depth | C code dim | K codes of each depth
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.errors import ConfigError
from tilework.tokenizers.quantise import Quantised, Quantiser, best


class ResidualQuantiser(Quantiser):
    """D codes of a vector, whose sum stands for it; codes of depth d are numbered from d K."""

    def __init__(self, codes: int, code_dim: int, depth: int) -> None:
        super().__init__()
        self.depth, self.each = depth, codes
        self.embedding = nn.Embedding(depth * codes, code_dim)
        nn.init.normal_(self.embedding.weight)

    @property
    def codebook(self) -> Tensor:
        """Those of all depths one after another, (D K, C)."""
        return self.embedding.weight

    def nearest(self, features: Tensor) -> Tensor:
        """(..., C) to (..., D) int64."""
        left, ids = features, []
        for first in range(0, self.depth * self.each, self.each):
            book = self.codebook[first : first + self.each]
            half = book.square().sum(1) / 2
            ids.append(first + best(left, lambda x, book=book, half=half: x @ book.T - half, self.each))  # type: ignore[misc]
            left = left - self.codebook[ids[-1]]
        return torch.stack(ids, -1)

    def sum(self, vectors: Tensor) -> Tensor:
        """What codes stand for together. (..., D, C) to (..., C)."""
        return vectors.sum(-2)

    def continuous(self, features: Tensor) -> Tensor:
        """Several codes stand for a vector together, none for a part of it."""
        raise ConfigError("these codes are sums: gradients of one are not defined", "attack with square or random")

    def forward(self, features: Tensor) -> Quantised:
        """features: (..., C); the losses count every partial sum, as published. ids: (..., D)."""
        ids = self.nearest(features.detach())
        partial = F.embedding(ids, self.codebook).cumsum(-2)  # (..., D, C)
        codebook = (partial - features.detach()[..., None, :]).square().mean()
        commitment = (partial.detach() - features[..., None, :]).square().mean()
        vectors = features + (partial[..., -1, :] - features).detach()
        return Quantised(ids, vectors, codebook, commitment)
