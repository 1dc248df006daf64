"""Modulation across tokens: normalise each region of a map by its own statistics (Good tokenizers, eqs. 3 to 5).

Means and deviations are weighted by the layout; with one entity, or all of them everywhere alike, that is instance
normalisation. As in other norms, epsilon stands beside the variance. The scores f(X) start narrow, so that MoTo
begins as instance normalisation and learns its layout; a wide start costs accuracy when converged (docs/results.md).

B batch | C channels | H, W grid | P = H W positions | n entities | c = C / 8
"""

from __future__ import annotations

from math import log, sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.layers.readings import Watched

TEMPERATURE = 0.1
SPREAD = 0.01  # of the layout's first scores; a 1x1 convolution as torch starts it has 0.06
CACHED = 1 << 18  # numbers; about a dozen maps of them are needed at once
NOTED = 64  # positions of each image, about, whose entropy is logged: that of all would take as long as the softmax


class EntityScores(nn.Module):
    """f: on maps of deviation 1 its scores, times the temperature, start with deviation `spread`."""

    # a 1x1 convolution, but no nn.Conv2d: some networks start all of those anew
    def __init__(self, channels: int, entities: int, spread: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(spread / (TEMPERATURE * sqrt(channels)) * torch.randn(entities, channels, 1, 1))
        self.bias = nn.Parameter(torch.zeros(entities))

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W)
        """Returns (B, n, H, W)."""
        return F.conv2d(x, self.weight, self.bias)


class Moto(Watched):
    """A soft partition into entities, and a mean, a deviation, a scale and a shift for each of them."""

    def __init__(
        self, channels: int, entities: int = 8, hard: bool = False, eps: float = 1e-5, spread: float = SPREAD
    ) -> None:
        super().__init__()
        self.entities, self.hard, self.eps = entities, hard, eps
        inner = max(1, channels // 8)
        self.feature = EntityScores(channels, entities, spread)  # f
        self.key = nn.Conv2d(channels, inner, 1)
        self.query = nn.Conv2d(channels, inner, 1)
        self.dictionary = nn.Parameter(0.02 * torch.randn(entities))  # u
        self.entity_scale = nn.Parameter(torch.ones(entities, channels))  # beta
        self.entity_shift = nn.Parameter(torch.zeros(entities, channels))  # alpha

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W)
        """Returns (B, C, H, W)."""
        places = self.places(x)
        together = max(1, len(x))
        if x.device.type == "cpu" and not torch.compiler.is_compiling():
            together = max(1, CACHED // (x.shape[1] * x.shape[2] * x.shape[3]))  # samples whose maps a cache holds
        step = x.shape[2] * x.shape[3] // NOTED | 1  # odd, so that it leaves no column of an even map out
        parts: list[Tensor] = []
        noted: list[Tensor] = []
        for part, where in zip(x.split(together), places.split(together), strict=True):
            shares = self.shares(part, where)
            parts.append(self.modulate(part, self.partition(shares)))
            if self.training:
                noted.append(shares.detach()[:, :, ::step])
        if self.training:
            self.readings = {"layout_entropy": relative_entropy(torch.cat(noted))}
        return torch.cat(parts) if len(parts) > 1 else parts[0]

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
        """Share of each entity in each position, all or nothing if `hard`. x: (B, C, H, W); returns (B, n, P)."""
        return self.partition(self.shares(x, places))

    def shares(self, x: Tensor, places: Tensor) -> Tensor:
        """The soft layout (eqs. 3 and 4). x: (B, C, H, W); returns (B, n, P)."""
        key, query, feature = (f(x).flatten(2) for f in (self.key, self.query, self.feature))  # (B, c or n, P)
        sampled = key.gather(2, places[:, None].expand(-1, key.shape[1], -1))  # (B, c, n)
        z = self.dictionary[:, None] * (sampled.transpose(1, 2) @ query) + feature
        return (TEMPERATURE * z.float()).softmax(1)

    def partition(self, shares: Tensor) -> Tensor:
        """The soft layout itself, or its largest shares alone. shares: (B, n, P)."""
        if not self.hard:
            return shares
        chosen = F.one_hot(shares.argmax(1), self.entities).movedim(-1, 1).to(shares.dtype)
        return chosen + (shares - shares.detach())  # the gradient is the soft one's

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


def relative_entropy(shares: Tensor) -> Tensor:
    """Mean entropy of positions as a share of log n: 1 for a uniform layout, 0 for a hard one. shares: (B, n, P)."""
    return torch.special.entr(shares).sum(1).mean() / max(1e-12, log(shares.shape[1]))
