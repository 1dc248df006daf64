"""TokenAdapt's network: codes to a map that takes pixel augmentations, and back (SeiT++, eq. 2, figure 4).

B batch | C code dim | H, W code grid | D width | K codes
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn

from tilework.core.errors import ConfigError
from tilework.layers.block import Block
from tilework.layers.positions import sincos_positions


class TokenAdaptNetwork(nn.Module):
    """f doubles the grid, g halves it; between them lies what may be flipped, turned, cropped and mixed like pixels.

    Independent of the vocabulary and the grid. Code vectors are standardised on the way in and back on the way out.
    codes: size of the vocabulary for the published end, a linear map to logits instead of code vectors; its 768
    parameters less elsewhere are read here as two maps to the width without bias.
    """

    regression = False  # whether it was trained to give vectors, of positions with several codes, instead of codes
    mean: Tensor  # (C,) of the code vectors
    deviation: Tensor  # of them, over all channels

    def __init__(self, code_dim: int, width: int = 384, heads: int = 6, codes: int = 0) -> None:
        super().__init__()
        if width % 4:
            raise ConfigError(f"positions need a width divisible by 4, not {width}", "change model.width")
        self.width, self.codes = width, codes
        self.inlet = nn.Linear(code_dim, width, bias=not codes)
        self.forth = Block(width, heads)
        self.spread = nn.ConvTranspose2d(width, code_dim, 2, stride=2)
        self.gather = nn.Conv2d(code_dim, width, 2, stride=2, bias=not codes)
        self.back = Block(width, heads)
        self.outlet = nn.Linear(width, codes or code_dim)
        self.register_buffer("mean", torch.zeros(code_dim))
        self.register_buffer("deviation", torch.ones(()))

    def fit_codes(self, codebook: Tensor) -> None:
        """Take the scale of code vectors from all of a tokenizer's. codebook: (K, C)."""
        self.mean.copy_(codebook.mean(0))
        self.deviation.copy_((codebook - codebook.mean(0)).square().mean().sqrt().clamp(min=1e-12))

    def f(self, z: Tensor) -> Tensor:
        """Code vectors to an augmentable map. z: (B, C, H, W); returns (B, C, 2 H, 2 W)."""
        x = (z.permute(0, 2, 3, 1) - self.mean) / self.deviation
        return self.spread(self._mix(self.forth, self.inlet(x)))

    def g(self, s: Tensor, codebook: Tensor) -> Tensor:
        """An augmented map to logits of codes. s: (B, C, 2 H, 2 W); codebook: (K, C); returns (B, H, W, K).

        Eq. 3: how near each vector lies to each code.
        """
        z = self._back(s)  # standardised, or logits
        if self.codes:
            return z
        code = (codebook - self.mean) / self.deviation
        near = z @ code.T - code.square().sum(1) / 2  # squared distances but for a constant
        return near / code.shape[1] ** 0.5  # of one size whatever the code dim, as in attention

    def vectors(self, s: Tensor) -> Tensor:
        """An augmented map to code vectors. s: (B, C, 2 H, 2 W); returns (B, C, H, W)."""
        return (self._back(s) * self.deviation + self.mean).permute(0, 3, 1, 2)

    def _back(self, s: Tensor) -> Tensor:
        """s: (B, C, 2 H, 2 W); returns (B, H, W, C)."""
        x = self._mix(self.back, self.gather(s).permute(0, 2, 3, 1))  # (B, D, H, W)
        return self.outlet(x.permute(0, 2, 3, 1))

    def _mix(self, block: Block, x: Tensor) -> Tensor:
        """A block of attention with fixed positions. x: (B, H, W, D); returns (B, D, H, W)."""
        batch, height, columns, width = x.shape
        tokens = x.flatten(1, 2) + _positions(width, height, columns, x.device).to(x.dtype)
        return block(tokens)[0].transpose(1, 2).reshape(batch, width, height, columns)


@lru_cache(maxsize=16)
def _positions(width: int, height: int, columns: int, device: torch.device) -> Tensor:
    return sincos_positions(width, height, columns).to(device)
