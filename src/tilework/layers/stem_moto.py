"""A norm inside any stem: MoTo, or batch, layer or instance norm instead (Good tokenizers, tables 2 and 6).

B batch | C input channels | H, W input grid | D width | h, w token grid | n entities
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from torch import Tensor, nn

from tilework.core.errors import ConfigError
from tilework.core.registry import nearest
from tilework.layers.moto import SPREAD, Moto
from tilework.layers.stems import PatchStemConfig, Stem, StemConfig


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of each place of a map."""

    def forward(self, input: Tensor) -> Tensor:
        """input: (B, C, H, W)."""
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


NORMS: dict[str, Callable[[int, MotoStemConfig], nn.Module]] = {
    "moto": lambda channels, config: Moto(channels, config.entities, config.hard, spread=config.spread),
    "batch": lambda channels, config: nn.BatchNorm2d(channels),
    "layer": lambda channels, config: ChannelNorm(channels),
    "instance": lambda channels, config: nn.InstanceNorm2d(channels, affine=True),
    "none": lambda channels, config: nn.Identity(),
}


class MotoStem(Stem):
    """A stem with a norm before it, on a thin map of features of the input, or after it, on the tokens.

    The thin map is folded back to the channels of the input, so that the stem itself keeps its parameters.
    """

    def __init__(self, channels: int, grid: tuple[int, int], width: int, config: MotoStemConfig) -> None:
        stem = config.stem.build(channels, grid, width)
        super().__init__(stem.grid, stem.width, stem.stride)
        self.takes = stem.takes
        before = config.place == "pixel"
        self.thin = nn.Conv2d(channels, config.channels, 3, padding=1) if before else None
        self.moto = NORMS[config.norm](config.channels if before else width, config)
        self.fold = nn.Conv2d(config.channels, channels, 1) if before else None
        self.inner = stem

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W)
        """Returns (B, D, h, w)."""
        if self.thin is None or self.fold is None:
            return self.moto(self.inner(x))
        return self.inner(self.fold(self.moto(self.thin(x))))

    def layout(self, x: Tensor) -> Tensor:
        """Share of each entity in each position, (B, n, H, W) or (B, n, h, w): figure 5."""
        if not isinstance(self.moto, Moto):
            raise ConfigError(f"a {type(self.moto).__name__} has no layout", "set stem.norm to 'moto'")
        features = self.inner(x) if self.thin is None else self.thin(x)
        return self.moto.layout(features, self.moto.places(features)).unflatten(2, features.shape[2:])


@StemConfig.choices.add("moto")
@dataclass(frozen=True)
class MotoStemConfig(StemConfig):
    """MoTo with any stem, so with any backbone; 'pixel' on code maps means the map of codes.

    `norm=none` is the control of every row with a norm: the same convolutions in the same position.
    """

    stem: StemConfig = field(default_factory=PatchStemConfig)
    place: Literal["pixel", "token"] = "pixel"
    norm: Literal["moto", "batch", "layer", "instance", "none"] = "moto"
    entities: int = 8
    hard: bool = False  # each position belongs to one entity
    channels: int = 16  # of the thin map
    spread: float = SPREAD  # how far the layout starts from an even one: deviation of its scores, times the temperature

    def __post_init__(self) -> None:
        if self.entities < 1 or self.channels < 1:
            raise ValueError(f"{self.entities} entities on {self.channels} channels: one of each is needed at least")
        if not 0 <= self.spread < inf:
            raise ValueError(f"spread is {self.spread} but must not be negative")

    def build(self, channels: int, grid: tuple[int, int], width: int) -> Stem:
        """The stem for an input of `channels` on `grid`."""
        if self.norm not in NORMS:
            raise ConfigError(f"no norm '{self.norm}' for a stem", nearest(self.norm, NORMS))
        if self.place not in ("pixel", "token"):
            raise ConfigError(f"a norm cannot stand at '{self.place}'", "set stem.place to 'pixel' or 'token'")
        return MotoStem(channels, grid, width, self)
