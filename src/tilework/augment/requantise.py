"""Augmentation of code vectors that ends in codes again: a model never sees vectors between codes (SeiT++).

B batch | H, W code grid | C code dim | K codes | h, w output grid
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from tilework.augment.augment import (
    CPU,
    AnyStep,
    Augment,
    Step,
    apply_all,
    build_all,
    need_vectors,
    output_shape,
)
from tilework.augment.embed import look_up
from tilework.core.batch import Batch, Shape, Stage
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws

AT_ONCE = 1 << 26  # distances in memory


def nearest_codes(x: Tensor, vectors: Tensor) -> Tensor:
    """The code at the least distance from each vector. x: (B, C, h, w); vectors: (K, C); returns (B, h, w).

    The published code compares directions: the same for codes of one length, as those of a ViT-VQGAN.
    """
    flat, half = x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]), vectors.square().sum(1) / 2
    parts = flat.split(max(1, AT_ONCE // len(vectors)))
    return torch.cat([(part @ vectors.T - half).argmax(1) for part in parts]).view(len(x), *x.shape[2:])


@Augment.choices.add("requantise")
@dataclass(frozen=True)
class Requantise(Augment):
    """Look codes up in the tokenizer's codebook, run steps on the vectors, and take the nearest codes."""

    stages: ClassVar[tuple[Stage, ...]] = ("ids",)
    dense: ClassVar[bool] = True
    steps: tuple[Augment, ...] = ()

    def output(self, shape: Shape) -> Shape:
        """Codes on the grid that its steps give."""
        end = output_shape(self.steps, replace(shape, stage="map"))
        if end.stage != "map":
            raise ConfigError(f"the steps of 'requantise' end in {end.stage}", "end them in code vectors")
        return replace(end, stage="ids")

    def build(self, codebook: Codebook | None = None, device: torch.device = CPU) -> Requantised:
        """With the tokenizer's vectors, whatever a model learnt instead of them."""
        book = need_vectors(codebook, self).with_learnt(None)
        vectors = torch.from_numpy(book.vectors).to(device)
        return Requantised(build_all(self.steps, book, device), vectors, book.deviation())


@dataclass(frozen=True, eq=False)
class Requantised(Step[Draws]):
    """Codes through vectors to codes."""

    steps: tuple[AnyStep, ...]
    vectors: Tensor  # (K, C)
    deviation: float  # of them

    def sample(self, draws: Draws, batch: Batch) -> Draws:
        """Its steps draw for themselves."""
        return draws

    @torch.no_grad()
    def apply(self, batch: Batch, p: Draws) -> Batch:
        """x: (B, H, W) codes to (B, h, w) codes; labels and columns follow its steps."""
        embedded = batch.changed(x=look_up(batch.x, self.vectors), deviation=self.deviation)
        moved = apply_all(self.steps, embedded, p)
        return moved.changed(x=nearest_codes(moved.x, self.vectors).to(batch.x.dtype), deviation=None)
