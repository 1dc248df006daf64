"""TokenAdapt's network: codes to a map that takes pixel augmentations, and back (SeiT++, eq. 2, figure 4).

B batch | C code dim | H, W code grid | D width | K codes
"""

from __future__ import annotations

from functools import lru_cache
from math import log

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.errors import ConfigError
from tilework.layers.block import Block
from tilework.layers.positions import sincos_positions

GRID = 32  # side of the grid whose positions the start avoids
APART = 0.5  # deviation of what tells the four places of a code on the map apart at first, over that of the codes
PERFECT = 0.5  # nats that a code's own vector costs at first, through the other codes near it
SAMPLE = 1024  # codes that the temperature is fitted on


class TokenAdaptNetwork(nn.Module):
    """f doubles the grid, g halves it; between them lies what may be flipped, turned, cropped and mixed like pixels.

    Independent of the vocabulary and the grid. Inside, every channel of the code vectors has mean 0 and deviation 1;
    logits go by the distance that the tokenizer quantises by, in which channels count as much as they vary.
    codes: size of the vocabulary for the network of the published code. It takes code vectors as they are, ends in a
    linear map to logits, and its blocks have no bias at queries, keys and values, a tanh in the MLP, a LayerNorm at
    their end, and eps 1e-5 in all norms.
    """

    regression = False  # whether it was trained to give vectors, of positions with several codes, instead of codes
    mean: Tensor  # (C,) of the code vectors
    deviation: Tensor  # (C,)

    def __init__(self, code_dim: int, width: int = 384, heads: int = 6, codes: int = 0) -> None:
        super().__init__()
        if width % 4:
            raise ConfigError(f"positions need a width divisible by 4, not {width}", "change model.width")
        self.width, self.codes = width, codes
        self.inlet = nn.Linear(code_dim, width)
        self.forth, self.forth_norm = _block(width, heads, codes > 0)
        self.spread = nn.ConvTranspose2d(width, code_dim, 2, stride=2)
        self.gather = nn.Conv2d(code_dim, width, 2, stride=2)
        self.back, self.back_norm = _block(width, heads, codes > 0)
        self.outlet = nn.Linear(width, codes or code_dim)
        if not codes:
            self.log_temperature = nn.Parameter(torch.zeros(()))
        self.register_buffer("mean", torch.zeros(code_dim))
        self.register_buffer("deviation", torch.ones(code_dim))

    @torch.no_grad()
    def fit_codes(self, codebook: Tensor) -> None:
        """Scale, start and temperature by all code vectors of a tokenizer, (K, C); the published network has none."""
        if self.codes:
            return
        wide = codebook.double()
        deviation = wide.std(0, correction=0)
        least = torch.maximum(1e-3 * deviation.max(), 1e-5 * wide.mean(0).abs()).clamp(min=1e-12)
        self.mean.copy_(wide.mean(0))
        self.deviation.copy_(deviation.maximum(least))  # a channel that hardly varies tells no codes apart
        self.log_temperature.copy_(_fitted((codebook - self.mean) / self._unit))
        self._give_back()

    @property
    def _unit(self) -> Tensor:
        """Deviation of the code vectors over all channels."""
        return self.deviation.square().mean().sqrt()

    @torch.no_grad()
    def _give_back(self) -> None:
        """Start as a network that gives every code vector back where the map was moved by whole positions.

        Blocks add nothing yet. Vectors travel along the directions that positions use least. The four places of a code
        on the map hold its vector plus something of their own, so that a flip can be seen.
        """
        for block in (self.forth, self.back):
            for last in (block.attn.proj, block.mlp.fc2):
                nn.init.zeros_(last.weight)
                nn.init.zeros_(last.bias)
        code_dim, width = len(self.mean), self.width
        positions = sincos_positions(width, GRID, GRID).to(self.mean).double()
        free = torch.linalg.eigh(positions.T @ positions)[1].T  # (D, D), the least used one first
        free = F.pad(free, (0, 0, 0, max(0, 4 * code_dim - width))).to(self.mean)  # nothing where there are too few
        gain = (width / code_dim) ** 0.5  # of about the size of positions
        signs = self.mean.new_tensor([[[1, 1], [1, 1]], [[1, -1], [1, -1]], [[1, 1], [-1, -1]], [[1, -1], [-1, 1]]])
        own = torch.randn(4, code_dim, code_dim).to(self.mean) * APART / code_dim**0.5
        own[0] = torch.eye(code_dim)
        first, all_four = free[:code_dim], free[: 4 * code_dim].view(4, code_dim, width)
        self.inlet.weight.copy_(gain * first.T)
        self.spread.weight.copy_(torch.einsum("kij,kce,ed->dcij", signs, own, first / gain))
        self.gather.weight.copy_(torch.einsum("kij,kcd->dcij", signs, gain / 4 * all_four))
        self.outlet.weight.copy_(first / gain)
        for layer in (self.inlet, self.spread, self.gather, self.outlet):
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def f(self, z: Tensor) -> Tensor:
        """Code vectors to an augmentable map. z: (B, C, H, W); returns (B, C, 2 H, 2 W)."""
        x = (z.permute(0, 2, 3, 1) - self.mean) / self.deviation
        return self.spread(self._mix(self.forth, self.forth_norm, self.inlet(x)))

    def g(self, s: Tensor, codebook: Tensor) -> Tensor:
        """An augmented map to logits of codes. s: (B, C, 2 H, 2 W); codebook: (K, C); returns (B, H, W, K).

        Eq. 3: how near each vector lies to each code, over a learnt temperature; always in full precision.
        """
        z = self._back(s)  # standardised, or logits
        if self.codes:
            return z
        with torch.autocast(s.device.type, enabled=False):
            near = _nearness(z.float() * (self.deviation / self._unit), (codebook - self.mean) / self._unit)
            return near * torch.exp(-self.log_temperature)

    def vectors(self, s: Tensor) -> Tensor:
        """An augmented map to code vectors. s: (B, C, 2 H, 2 W); returns (B, C, H, W)."""
        return (self._back(s) * self.deviation + self.mean).permute(0, 3, 1, 2)

    def _back(self, s: Tensor) -> Tensor:
        """s: (B, C, 2 H, 2 W); returns (B, H, W, C)."""
        x = self._mix(self.back, self.back_norm, self.gather(s).permute(0, 2, 3, 1))  # (B, D, H, W)
        return self.outlet(x.permute(0, 2, 3, 1))

    def _mix(self, block: Block, norm: nn.Module, x: Tensor) -> Tensor:
        """A block of attention with fixed positions. x: (B, H, W, D); returns (B, D, H, W)."""
        batch, height, columns, width = x.shape
        tokens = x.flatten(1, 2) + _positions(width, height, columns, x.device).to(x.dtype)
        return norm(block(tokens)[0]).transpose(1, 2).reshape(batch, width, height, columns)


def _block(width: int, heads: int, published: bool) -> tuple[Block, nn.Module]:
    """A block and the norm after it."""
    if not published:
        return Block(width, heads), nn.Identity()
    block = Block(width, heads, qkv_bias=False, eps=1e-5)
    block.mlp.add_module("act", nn.Tanh())
    return block, nn.LayerNorm(width, eps=1e-5)


def _nearness(z: Tensor, codes: Tensor) -> Tensor:
    """Squared distances but for a constant, falling, of one size whatever C. z: (..., C); codes: (K, C)."""
    return (z @ codes.T - codes.square().sum(1) / 2) / codes.shape[1] ** 0.5


def _fitted(codes: Tensor) -> Tensor:
    """The log temperature at which codes cost PERFECT nats, or a third of guessing, at their own place. codes: (K, C).

    More than at no temperature at all: codes that stand there twice never cost less.
    """
    some = torch.linspace(0, len(codes) - 1, min(SAMPLE, len(codes)), device=codes.device).long()
    near = _nearness(codes[some].double(), codes.double())
    low, high = near.new_tensor(-12.0), near.new_tensor(12.0)
    wanted = F.cross_entropy(near * torch.exp(-low), some) + min(PERFECT, log(len(codes)) / 3)
    for _ in range(30):  # the cost grows with the temperature
        middle = (low + high) / 2
        dear = F.cross_entropy(near * torch.exp(-middle), some) > wanted
        low, high = torch.where(dear, low, middle), torch.where(dear, middle, high)
    return high


@lru_cache(maxsize=16)
def _positions(width: int, height: int, columns: int, device: torch.device) -> Tensor:
    return sincos_positions(width, height, columns).to(device)
