"""Modulation across tokens: normalise each region of a map by its own statistics (Good tokenizers, eqs. 3 to 5).

Means and deviations are weighted by the layout; with one entity, or all of them everywhere alike, that is instance
normalisation. As in other norms, epsilon stands beside the variance.

B batch | C channels | H, W grid | P = H W places | n entities | c = C / 8
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TEMPERATURE = 0.1
CACHED = 1 << 18  # numbers; about a dozen maps of them are needed at once


class Moto(nn.Module):
    """A soft partition into entities, and a mean, a deviation, a scale and a shift for each of them."""

    def __init__(self, channels: int, entities: int = 8, hard: bool = False, eps: float = 1e-5) -> None:
        super().__init__()
        self.entities, self.hard, self.eps = entities, hard, eps
        inner = max(1, channels // 8)
        self.feature = nn.Conv2d(channels, entities, 1)  # f
        self.key = nn.Conv2d(channels, inner, 1)
        self.query = nn.Conv2d(channels, inner, 1)
        self.dictionary = nn.Parameter(0.02 * torch.randn(entities))  # u
        self.entity_scale = nn.Parameter(torch.ones(entities, channels))  # beta
        self.entity_shift = nn.Parameter(torch.zeros(entities, channels))  # alpha

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W)
        """Returns (B, C, H, W)."""
        places = self.places(x)
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return self.modulate(x, self.layout(x, places))
        together = max(1, CACHED // (x.shape[1] * x.shape[2] * x.shape[3]))  # samples whose maps a cache holds
        parts = zip(x.split(together), places.split(together), strict=True)
        return torch.cat([self.modulate(part, self.layout(part, where)) for part, where in parts])

    def places(self, x: Tensor) -> Tensor:
        """Where keys are taken, (B, n): at random in training, else on a fixed grid over the map."""
        batch, _, height, width = x.shape
        if self.training:
            return torch.randint(height * width, (batch, self.entities), device=x.device)
        rows = next(r for r in range(int(self.entities**0.5), 0, -1) if self.entities % r == 0)
        columns = self.entities // rows
        down, across = (
            (2 * torch.arange(count, device=x.device) + 1) * side // (2 * count)
            for side, count in ((height, rows), (width, columns))
        )
        return (width * down[:, None] + across).flatten().expand(batch, -1)

    def layout(self, x: Tensor, places: Tensor) -> Tensor:
        """Share of each entity in each place (eqs. 3 and 4). x: (B, C, H, W); returns (B, n, P)."""
        key, query, feature = (f(x).flatten(2) for f in (self.key, self.query, self.feature))  # (B, c or n, P)
        sampled = key.gather(2, places[:, None].expand(-1, key.shape[1], -1))  # (B, c, n)
        z = self.dictionary[:, None] * (sampled.transpose(1, 2) @ query) + feature
        soft = (TEMPERATURE * z.float()).softmax(1)
        if not self.hard:
            return soft
        chosen = F.one_hot(soft.argmax(1), self.entities).movedim(-1, 1).to(soft.dtype)
        return chosen + (soft - soft.detach())  # the gradient is the soft one's

    def modulate(self, x: Tensor, layout: Tensor) -> Tensor:
        """Eq. 5 as X (a L) + b L, which costs O(n C H W). x: (B, C, H, W); layout: (B, n, P)."""
        with torch.autocast(x.device.type, enabled=False):
            flat = x.flatten(2).float()  # (B, C, P)
            centred = flat - flat.mean(2, keepdim=True)  # variances of small differences stay exact
            weight = (layout / layout.sum(2, keepdim=True).clamp(min=self.eps)).transpose(1, 2)  # (B, P, n)
            mean = (centred @ weight).transpose(1, 2)  # (B, n, C)
            variance = (centred * centred @ weight).transpose(1, 2) - mean.square()
            a = self.entity_scale * (variance.clamp(min=0) + self.eps).rsqrt()
            b = self.entity_shift - a * mean
            y = centred * (a.transpose(1, 2) @ layout) + b.transpose(1, 2) @ layout
        return y.to(x.dtype).view_as(x)
