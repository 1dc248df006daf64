"""Quantisers: vectors to codes, with gradients that pass straight through.

Nearest neighbour by distance or cosine (VQ-VAE, van den Oord et al., 2017; ViT-VQGAN, Yu et al., 2022) or inner product
(IBQ, Shi et al., 2024); Gumbel softmax (Jang et al., 2017; DALL-E, Ramesh et al., 2021). Quantisers without a codebook
of their own (FSQ, LFQ) and those that code what is left (residual, VAR) have their own files.

... leading sides | C code dim | K codes | L latent channels
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.errors import ConfigError

LARGEST = 1 << 20  # codes of a codebook that is computed rather than learnt
AT_ONCE = 1 << 26  # scores of vectors against codes that are held at once


@dataclass(frozen=True)
class Quantised:
    """Codes of vectors while training."""

    ids: Tensor  # (...)
    vectors: Tensor  # (..., C) of the codes; gradients reach the encoder as if nothing had been quantised
    codebook: Tensor  # loss that moves the codes to the vectors
    commitment: Tensor  # loss that keeps the vectors near their codes


class Quantiser(nn.Module):
    """What every quantiser can do."""

    @property
    def codebook(self) -> Tensor:
        """Code vectors as networks see them, (K, C)."""
        raise NotImplementedError

    def nearest(self, features: Tensor) -> Tensor:
        """(..., C) to (...) int64."""
        raise NotImplementedError

    def nearest_of(self, features: Tensor, codes: Tensor) -> Tensor:
        """The nearest of some codes, as a position in their list. codes: (n,); returns (...) int64."""
        code = self.codebook[codes]  # features of codes by cosine need no unit length: the codes have it
        return best(features, lambda x: x @ code.T - code.square().sum(1) / 2, len(code))

    def continuous(self, features: Tensor) -> Tensor:
        """What codes stand in for, in the space of their vectors, (..., C): gradients pass through it."""
        return features

    def scores(self, features: Tensor, codes: Tensor) -> Tensor:
        """How well some codes fit, up to a term that they share: minus the squared distance. Returns (..., n)."""
        code = self.codebook[codes]
        return 2 * self.continuous(features) @ code.T - code.square().sum(1)

    def spacing(self, codes: Tensor) -> float:
        """How far scores of neighbours lie apart: mean squared distance from a code to the nearest other one."""
        code = self.codebook[codes].detach()
        near = [
            torch.cdist(part, code).topk(min(2, len(code)), largest=False).values[:, -1] for part in code.split(1024)
        ]
        return float(torch.cat(near).square().mean().clamp(min=1e-12))

    def forward(self, features: Tensor) -> Quantised:
        """features: (..., C)."""
        raise NotImplementedError


def best(features: Tensor, score: Callable[[Tensor], Tensor], codes: int) -> Tensor:
    """The code of the highest score, some vectors after others: not all scores fit at once. (..., C) to (...)."""
    flat = features.reshape(-1, features.shape[-1])
    parts = [score(part).argmax(-1) for part in flat.split(max(1, AT_ONCE // codes))]
    return torch.cat(parts).view(features.shape[:-1])


def check_codes_fit(codes: int) -> None:
    """Refuse a computed codebook before it takes memory."""
    if not 2 <= codes <= LARGEST:
        raise ConfigError(f"a codebook of {codes} codes", f"2 to {LARGEST} can be computed: change bits or levels")


Match = Literal["distance", "cosine", "product"]


class NearestQuantiser(Quantiser):
    """The nearest code; by cosine, vectors and codes have unit length; by product, long codes win (IBQ)."""

    def __init__(self, codes: int, code_dim: int, match: Match = "distance") -> None:
        super().__init__()
        self.match, self.cosine = match, match == "cosine"
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
        return self._best(F.normalize(features, dim=-1) if self.cosine else features, self.codebook)

    def nearest_of(self, features: Tensor, codes: Tensor) -> Tensor:
        """The nearest of some codes, as a position in their list. codes: (n,); returns (...) int64."""
        return self._best(features, self.codebook[codes])  # the length of features does not change the best cosine

    def continuous(self, features: Tensor) -> Tensor:
        """Of unit length where codes are."""
        return F.normalize(features, dim=-1) if self.cosine else features

    def scores(self, features: Tensor, codes: Tensor) -> Tensor:
        """By product: twice the product, which is the distance where codes are equally long."""
        return 2 * features @ self.codebook[codes].T if self.match == "product" else super().scores(features, codes)

    def _best(self, features: Tensor, codebook: Tensor) -> Tensor:
        half = codebook.square().sum(1) / 2 if self.match == "distance" else None
        return best(features, lambda x: x @ codebook.T if half is None else x @ codebook.T - half, len(codebook))

    def forward(self, features: Tensor) -> Quantised:
        """features: (..., C)."""
        features = F.normalize(features, dim=-1) if self.cosine else features
        ids = self.nearest(features.detach())
        vectors = F.embedding(ids, self.codebook)  # the gradient of [ids] varies with the threads
        codebook = (vectors - features.detach()).square().mean()
        commitment = (vectors.detach() - features).square().mean()
        return Quantised(ids, features + (vectors - features).detach(), codebook, commitment)


class GumbelQuantiser(Quantiser):
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
        """The likeliest of some codes, as a position in their list. codes: (n,); returns (...) int64."""
        return best(features, lambda x: self._logits(x)[..., codes], len(self.table))

    def continuous(self, features: Tensor) -> Tensor:
        """The mean of the codes by their likelihood. features: (..., L); returns (..., C)."""
        return self._logits(features).softmax(-1) @ self.codebook

    def scores(self, features: Tensor, codes: Tensor) -> Tensor:
        """The logits of some codes."""
        return self._logits(features)[..., codes]

    def spacing(self, codes: Tensor) -> float:
        """Logits have a temperature of their own: it is a sixteenth of this."""
        return 16.0

    def nearest(self, features: Tensor) -> Tensor:
        """The likeliest code. features: (..., L); returns (...) int64."""
        return best(features, self._logits, len(self.table))

    def forward(self, features: Tensor) -> Quantised:
        """features: (..., L). The divergence from the even distribution stands in for a codebook loss."""
        logits = self._logits(features)
        choice = F.gumbel_softmax(logits, self.temperature, hard=True)  # one-hot, gradient of the softmax
        p = logits.softmax(-1)
        divergence = (p * (p * p.shape[-1] + 1e-10).log()).sum(-1).mean()
        zero = torch.zeros((), device=features.device)
        return Quantised(choice.argmax(-1), choice @ self.codebook, self.divergence * divergence, zero)
