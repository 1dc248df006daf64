"""A stem that stays as it was drawn (MoCo v3; Good tokenizers, table 1)."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilework.layers.stems import PatchStemConfig, Stem, StemConfig


@StemConfig.choices.add("frozen")
@dataclass(frozen=True)
class FrozenStemConfig(StemConfig):
    """Any stem with random weights that are never trained; a backbone's own norm after it is."""

    stem: StemConfig = field(default_factory=PatchStemConfig)

    def build(self, channels: int, grid: tuple[int, int], width: int) -> Stem:
        """The stem without gradients."""
        return self.stem.build(channels, grid, width).requires_grad_(False)
