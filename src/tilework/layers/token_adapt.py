"""TokenAdapt's network: codes to a map that takes pixel augmentations, and back (SeiT++, eq. 2, figure 4).

B batch | C code dim | H, W code grid | D width | K codes
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tilework.core.errors import ConfigError
from tilework.layers.block import Block
from tilework.layers.positions import sincos_positions


class TokenAdaptNetwork(nn.Module):
    """f doubles the grid, g halves it; between them lies what may be flipped, turned, cropped and mixed like pixels.

    Independent of the vocabulary and the grid. Code vectors are standardised on the way in and back on the way out.
    """

    mean: Tensor  # (C,) of the code vectors
    deviation: Tensor  # of them, over all channels

    def __init__(self, code_dim: int, width: int = 384, heads: int = 6, mlp_ratio: float = 4.0) -> None:
        super().__init__()
        if width % 4:
            raise ConfigError(f"positions need a width divisible by 4, not {width}", "change model.width")
        self.width = width
        self.inlet = nn.Linear(code_dim, width)
        self.forth = Block(width, heads, mlp_ratio)
        self.spread = nn.ConvTranspose2d(width, code_dim, 2, stride=2)
        self.gather = nn.Conv2d(code_dim, width, 2, stride=2)
        self.back = Block(width, heads, mlp_ratio)
        self.outlet = nn.Linear(width, code_dim)
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

    def g(self, s: Tensor) -> Tensor:
        """An augmented map to code vectors, not yet quantised. s: (B, C, 2 H, 2 W); returns (B, C, H, W)."""
        x = self._mix(self.back, self.gather(s).permute(0, 2, 3, 1))  # (B, D, H, W)
        return (self.outlet(x.permute(0, 2, 3, 1)) * self.deviation + self.mean).permute(0, 3, 1, 2)

    def logits(self, z: Tensor, codebook: Tensor) -> Tensor:
        """Eq. 3: how near each vector lies to each code, on the scale of the codes' deviation. Returns (B, H, W, K)."""
        near = z.permute(0, 2, 3, 1) @ codebook.T - codebook.square().sum(1) / 2  # squared distances but for a constant
        return near / self.deviation.square()

    def nearest(self, z: Tensor, codebook: Tensor) -> Tensor:
        """Eq. 2: quantisation. z: (B, C, H, W); returns (B, H, W) int64."""
        return self.logits(z, codebook).argmax(-1)

    def _mix(self, block: Block, x: Tensor) -> Tensor:
        """A block of attention with fixed positions. x: (B, H, W, D); returns (B, D, H, W)."""
        batch, height, columns, width = x.shape
        tokens = x.flatten(1, 2) + sincos_positions(width, height, columns).to(x)
        return block(tokens)[0].transpose(1, 2).reshape(batch, width, height, columns)
