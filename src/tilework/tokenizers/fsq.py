"""Finite scalar quantisation: every channel rounded to a few levels, no codebook to learn (FSQ, Mentzer et al., 2023).

... leading sides | C channels, one per entry of `levels` | K codes, the product of the levels
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from tilework.core.errors import ConfigError
from tilework.tokenizers.quantise import Quantised, Quantiser, check_codes_fit

MARGIN = 1e-3  # by which the bound stays inside the outermost levels


class FsqQuantiser(Quantiser):
    """A bounded channel rounded to one of L levels, evenly spaced in [-1, 1]; the first channel counts fastest."""

    reach: Tensor
    offset: Tensor
    width: Tensor
    basis: Tensor
    codes: Tensor

    def __init__(self, levels: tuple[int, ...]) -> None:
        super().__init__()
        if not levels or min(levels) < 2:
            raise ConfigError(f"levels of {levels}", "give two or more for every channel, such as levels=[8,5,5,5]")
        check_codes_fit(prod(levels))
        each = torch.tensor(levels)
        basis = torch.tensor([prod(levels[:i]) for i in range(len(levels))])
        numbers = torch.arange(prod(levels))[:, None] // basis % each - each // 2  # (K, C)
        made = {"reach": (each - 1) * (1 - MARGIN) / 2, "offset": (each % 2 == 0) * 0.5, "width": each // 2}
        for name, value in {**made, "basis": basis, "codes": numbers / (each // 2)}.items():
            self.register_buffer(name, value, persistent=False)

    @property
    def codebook(self) -> Tensor:
        """All combinations of levels, (K, C)."""
        return self.codes

    def bound(self, features: Tensor) -> Tensor:
        """Channels squeezed to the range of their levels (listing A.1); an even number lies half a level lower."""
        shift = (self.offset / self.reach).tan()
        return (features + shift).tanh() * self.reach - self.offset

    def nearest(self, features: Tensor) -> Tensor:
        """(..., C) to (...) int64."""
        return ((self.bound(features).round().long() + self.width) * self.basis).sum(-1)

    def nearest_of(self, features: Tensor, codes: Tensor) -> Tensor:
        """The nearest of some codes to the bounded channels, as a position in their list. codes: (n,)."""
        return super().nearest_of(self.bound(features) / self.width, codes)

    def continuous(self, features: Tensor) -> Tensor:
        """Bounded channels, before they are rounded."""
        return self.bound(features) / self.width

    def forward(self, features: Tensor) -> Quantised:
        """features: (..., C). Nothing but the reconstruction trains it, so both losses are zero."""
        bounded = self.bound(features)
        rounded = bounded + (bounded.round() - bounded).detach()
        zero = features.new_zeros(())
        return Quantised(self.nearest(features.detach()), rounded / self.width, zero, zero)
