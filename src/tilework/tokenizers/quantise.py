"""Quantisers: vectors to codes, with gradients that pass straight through.

Nearest neighbour by distance or cosine (VQ-VAE, van den Oord et al., 2017; ViT-VQGAN, Yu et al., 2022); Gumbel softmax
(Jang et al., 2017; DALL-E, Ramesh et al., 2021).

... leading sides | C code dim | K codes | L latent channels
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Quantised:
    """Codes of vectors while training."""

    ids: Tensor  # (...)
    vectors: Tensor  # (..., C) of the codes; gradients reach the encoder as if nothing had been quantised
    codebook: Tensor  # loss that moves the codes to the vectors
    commitment: Tensor  # loss that keeps the vectors near their codes


class NearestQuantiser(nn.Module):
    """The nearest code; by cosine, vectors and codes have unit length."""

    def __init__(self, codes: int, code_dim: int, cosine: bool = False) -> None:
        super().__init__()
        self.cosine = cosine
        self.embedding = nn.Embedding(codes, code_dim)
        nn.init.uniform_(self.embedding.weight, -1 / codes, 1 / codes)

    @property
    def table(self) -> Tensor:
        """The codes as they are trained."""
        return self.embedding.weight

    @property
    def codebook(self) -> Tensor:
        """Code vectors as networks see them, (K, C)."""
        return F.normalize(self.table, dim=1) if self.cosine else self.table

    def nearest(self, features: Tensor) -> Tensor:
        """(..., C) to (...) int64."""
        codebook = self.codebook
        if self.cosine:
            return (F.normalize(features, dim=-1) @ codebook.T).argmax(-1)
        return (features @ codebook.T - codebook.square().sum(1) / 2).argmax(-1)

    def nearest_of(self, features: Tensor, codes: Tensor) -> Tensor:
        """The nearest of some codes, as a place in their list. codes: (n,); returns (...) int64."""
        code = self.codebook[codes]  # features of codes by cosine need no unit length: the codes have it
        return (features @ code.T - code.square().sum(1) / 2).argmax(-1)

    def forward(self, features: Tensor) -> Quantised:
        """features: (..., C)."""
        features = F.normalize(features, dim=-1) if self.cosine else features
        ids = self.nearest(features.detach())
        vectors = F.embedding(ids, self.codebook)  # the gradient of [ids] varies with the threads
        codebook = (vectors - features.detach()).square().mean()
        commitment = (vectors.detach() - features).square().mean()
        return Quantised(ids, features + (vectors - features).detach(), codebook, commitment)


class GumbelQuantiser(nn.Module):
    """The likeliest code; while training, a choice that noise perturbs, with the gradient of its softmax."""

    def __init__(
        self, codes: int, code_dim: int, latent: int, temperature: float = 1.0, divergence: float = 5e-4
    ) -> None:
        super().__init__()
        self.temperature, self.divergence = temperature, divergence
        self.proj = nn.Conv2d(latent, codes, 1)
        self.embedding = nn.Embedding(codes, code_dim)

    @property
    def table(self) -> Tensor:
        """The codes as they are trained."""
        return self.embedding.weight

    @property
    def codebook(self) -> Tensor:
        """Code vectors as networks see them, (K, C)."""
        return self.embedding.weight

    def _logits(self, features: Tensor) -> Tensor:
        return F.linear(features, self.proj.weight[:, :, 0, 0], self.proj.bias)  # (..., K)

    def nearest_of(self, features: Tensor, codes: Tensor) -> Tensor:
        """The likeliest of some codes, as a place in their list. codes: (n,); returns (...) int64."""
        return self._logits(features)[..., codes].argmax(-1)

    def nearest(self, features: Tensor) -> Tensor:
        """The likeliest code. features: (..., L); returns (...) int64."""
        return self._logits(features).argmax(-1)

    def forward(self, features: Tensor) -> Quantised:
        """features: (..., L). The divergence from the even distribution stands in for a codebook loss."""
        logits = self._logits(features)
        choice = F.gumbel_softmax(logits, self.temperature, hard=True)  # one-hot, gradient of the softmax
        p = logits.softmax(-1)
        divergence = (p * (p * p.shape[-1] + 1e-10).log()).sum(-1).mean()
        zero = torch.zeros((), device=features.device)
        return Quantised(choice.argmax(-1), choice @ self.codebook, self.divergence * divergence, zero)
