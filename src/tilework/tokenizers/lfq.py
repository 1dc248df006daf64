"""Lookup-free quantisation: the sign of every channel is a bit of the code (LFQ; MAGVIT-v2, Yu et al., 2024).

... leading sides | C channels = bits | K = 2^C codes
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.core.errors import ConfigError
from tilework.tokenizers.quantise import Quantised, Quantiser, check_codes_fit


class LfqQuantiser(Quantiser):
    """Channels above zero become 1, the others -1; the first channel is the lowest bit."""

    basis: Tensor
    codes: Tensor

    def __init__(self, bits: int, entropy: float = 0.1) -> None:
        """entropy: weight of the loss for sure and even bits."""
        super().__init__()
        if not 1 <= bits < 63:
            raise ConfigError(f"codes of {bits} bits", "1 to 20 can be computed")
        check_codes_fit(1 << bits)
        basis = 1 << torch.arange(bits)
        self.entropy = entropy
        self.register_buffer("basis", basis, persistent=False)
        codes = (torch.arange(1 << bits)[:, None] & basis != 0) * 2.0 - 1  # (K, C)
        self.register_buffer("codes", codes, persistent=False)

    @property
    def codebook(self) -> Tensor:
        """All corners of the cube, (K, C)."""
        return self.codes

    def nearest(self, features: Tensor) -> Tensor:
        """(..., C) to (...) int64."""
        return ((features > 0) * self.basis).sum(-1)

    def forward(self, features: Tensor) -> Quantised:
        """features: (..., C).

        The codebook loss is the entropy of the code of each vector less that of the average code (eq. 5): as the
        likelihood of a corner is a product over channels, both are sums over bits, the second as an upper bound.
        """
        signs = (features > 0) * 2.0 - 1
        up = torch.sigmoid(4 * features.flatten(0, -2))  # (P, C), softmax of -|x - 1|^2 and -|x + 1|^2
        sure, even = _entropy(up).sum(-1).mean(), _entropy(up.mean(0)).sum()
        vectors = features + (signs - features).detach()
        loss = self.entropy * (sure - even)
        return Quantised(self.nearest(features.detach()), vectors, loss, F.mse_loss(features, signs))


def _entropy(p: Tensor) -> Tensor:
    """Of bits that are 1 with probability p, in nats."""
    p = p.clamp(1e-6, 1 - 1e-6)  # its slope at the ends is infinite
    return -(p * p.log() + (1 - p) * (1 - p).log())
