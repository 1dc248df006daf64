"""The decoder of masked token modelling: from visible patches to the codes of all (SeiT++, section 3.2).

B batch | N patches | n visible | D width of the encoder | d width here | p codes per patch | C code dim
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.layers.block import Block


class TokenDecoder(nn.Module):
    """A few blocks over visible patches and a shared vector, or the class feature, in place of the missing ones.

    What it says of each code ends in a GELU and a norm.
    """

    def __init__(
        self,
        width: int,
        places: int,
        codes: int,
        code_dim: int,
        inner: int,
        depth: int,
        heads: int,
        fill: str,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.fill = fill
        self.inlet = nn.Linear(width, inner)
        self.mask = nn.Parameter(torch.empty(1, 1, inner)) if fill == "mask" else None
        self.pos_embed = nn.Parameter(torch.empty(1, 1 + places, inner))
        self.blocks = nn.ModuleList(Block(inner, heads, dropout=dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(inner, eps=1e-6)
        self.outlet = nn.Linear(inner, codes * code_dim)
        self.code_norm = nn.LayerNorm(code_dim)
        self.code_dim = code_dim
        for parameter in (self.mask, self.pos_embed):
            if parameter is not None:
                nn.init.trunc_normal_(parameter, std=0.02)

    def forward(self, feature: Tensor, tokens: Tensor, position: Tensor) -> Tensor:
        """Vectors to compare with those of codes. feature: (B, D) class feature; tokens: (B, n, D) of the visible.

        position: (B, N) where each patch stands among the visible ones followed by the masked ones; (B, N, p, C).
        """
        batch, places = position.shape
        first, seen = self.inlet(feature)[:, None], self.inlet(tokens)  # (B, 1, d), (B, n, d)
        missing = (first if self.mask is None else self.mask).to(seen.dtype)
        ordered = torch.cat([seen, missing.expand(batch, places - seen.shape[1], -1)], 1)
        x = ordered.gather(1, position[..., None].expand(-1, -1, ordered.shape[2]))  # (B, N, d)
        x = torch.cat([first, x], 1) + self.pos_embed
        for block in self.blocks:
            x, _ = block(x)
        return self.code_norm(F.gelu(self.outlet(self.norm(x[:, 1:])).unflatten(-1, (-1, self.code_dim))))
