"""TokenAdapt in training: crop and mixing as of pixels for a share of every batch (SeiT++, section 3.3, appendix C).

B batch | n samples adapted | C code dim | H, W code grid | h, w output grid
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from tilework.augment.adapter import Adapter
from tilework.augment.affine import Geometry
from tilework.augment.augment import CPU, Augment, Step, need_vectors
from tilework.augment.color_adapt import Colours, TokenColour
from tilework.augment.crop import RandomResizedCrop
from tilework.augment.embed import deviation_of, look_up, model_table
from tilework.augment.mixing import CutMix, CutMixOrMixup
from tilework.augment.requantise import nearest_codes
from tilework.augment.token_crop import crop_codes
from tilework.core.artefact import artefact
from tilework.core.batch import Batch, Mix, Shape, Stage
from tilework.core.bounds import check_ranges
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws

# code vectors (n, C, H, W), maps (n, 2, 3), (h, w) and a mixture on twice that grid, to codes (n, h, w), or to vectors
# (n, C, h, w) where a position has several codes
Mover = Callable[[Tensor, Tensor, tuple[int, int], Mix | None], Tensor]


@dataclass(frozen=True)
class Adapting:
    """Where each sample goes: the first ones through the network, the others as tokens."""

    affine: Tensor  # (n, 2, 3)
    box: Tensor  # (B - n, 2, 3)
    own: Tensor  # (B, 2 h, 2 w) share of the sample itself
    colours: tuple[Colours, Colours]  # of both parts


@dataclass(frozen=True)
class LikePixels(Augment):
    """Codes to code vectors or codes, a share of every batch augmented as pixels are, by what a subclass says.

    Those are cropped, turned, flipped and mixed; the rest is cropped and mixed as tokens. Colours of both change after
    the look-up and before any mixing. Batches are shuffled, so that a fixed share of positions is a random share of
    samples, and nothing is counted on the device.
    """

    stages: ClassVar[tuple[Stage, ...]] = ("ids", "stacks")
    gives: ClassVar[Stage | None] = "map"
    dense: ClassVar[bool] = True
    share: float = 0.5
    size: tuple[int, int] = (28, 28)
    geometry: Geometry = field(default_factory=Geometry)
    mixing: CutMixOrMixup = field(default_factory=CutMixOrMixup)  # of adapted samples
    area: tuple[float, float] = (0.08, 1.0)  # of crops of the others
    cutmix: CutMix = field(default_factory=CutMix)  # of the others
    colour: TokenColour = field(default_factory=lambda: TokenColour(0.0, 0.0))
    standardise: bool = False  # as in 'embed'
    requantise: bool = False  # give codes, the nearest ones of the others, for models that embed them themselves

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share is {self.share} but must lie between 0 and 1")

    def output(self, shape: Shape) -> Shape:
        """A code map, or codes, on a grid of its own size."""
        if self.requantise and shape.stage == "stacks":
            what = f"augmentation '{self.name}' finds no nearest code for positions that have several"
            raise ConfigError(what, "set requantise=false and train without a table of codes")
        return replace(shape, stage="ids" if self.requantise else "map", grid=self.size)

    def mover(self, codebook: Codebook, device: torch.device) -> Mover:
        """What moves and mixes codes like pixels."""
        raise NotImplementedError

    def build(self, codebook: Codebook | None = None, device: torch.device = CPU) -> AdaptCodes:
        """With its network, for the codes of the data."""
        known = need_vectors(codebook, self)
        vectors = torch.from_numpy(known.vectors).to(device)
        own = known.with_learnt(None)
        seen, standardise = (own, False) if self.requantise else (known, self.standardise)
        table, deviations = model_table(seen, standardise, device), (own.deviation(), seen.deviation(standardise))
        return AdaptCodes(self, self.mover(known, device), vectors, table, deviations)


@dataclass(frozen=True, eq=False)
class AdaptCodes(Step[Adapting]):
    """A share of every batch through what moves codes like pixels, the rest as tokens."""

    config: LikePixels
    move: Mover
    vectors: Tensor  # (K, C) of the tokenizer
    table: Tensor  # (K, C) as the model sees them
    deviations: tuple[float, float]  # of both

    def sample(self, draws: Draws, batch: Batch) -> Adapting:
        """Positions, shares and colours of every sample."""
        config, (h, w) = self.config, self.config.size
        count = round(config.share * len(batch.x))
        first, rest = (replace(draws, index=draws.index[part]) for part in (slice(count), slice(count, None)))
        own = config.mixing.own(first, (2 * h, 2 * w))
        coarse = config.cutmix.own(rest, (h, w)).repeat_interleave(2, 1).repeat_interleave(2, 2)
        box = RandomResizedCrop(area=config.area).sample(rest, batch)
        dim, grid = self.vectors.shape[1], (batch.x.shape[-2], batch.x.shape[-1])
        inner, outer = (deviation_of(batch.x, table, dim) for table in self.deviations)  # each beside its own vectors
        colours = (config.colour.draw(first, (dim, *grid), inner), config.colour.draw(rest, (dim, h, w), outer))
        return Adapting(config.geometry.sample(first, batch), box, torch.cat([own, coarse]), colours)

    @torch.no_grad()
    def apply(self, batch: Batch, p: Adapting) -> Batch:
        """x: (B, H, W) or (B, C, H, W) codes to (B, C, h, w), or to codes, (B, h, w); labels and columns follow."""
        count, size, colour = len(p.affine), self.config.size, self.config.colour
        number = torch.arange(len(batch.x), device=batch.x.device)
        mix = Mix(torch.cat([number[:count].roll(1), number[count:].roll(1)]), p.own)
        inner, outer = (Mix(number[: len(own)].roll(1), own) for own in (p.own[:count], p.own[count:]))
        z = look_up(batch.x[:count], self.vectors)
        adapted = self.move(colour.change(z, p.colours[0]), p.affine, size, inner)
        plain = outer.apply(colour.change(crop_codes(batch.x[count:], self.table, p.box, size), p.colours[1]))
        affine = torch.cat([p.affine, p.box])
        columns = {name: column.warp(affine, size).mix(mix) for name, column in batch.columns.items()}
        target = batch.target.mix(mix.partner, mix.own.mean((1, 2)))
        deviation: float | None = deviation_of(batch.x, self.deviations[1], self.table.shape[1])
        if self.config.requantise:
            x, deviation = torch.cat([adapted, nearest_codes(plain, self.table)]).to(batch.x.dtype), None
        else:
            adapted = adapted if adapted.is_floating_point() else look_up(adapted, self.table)
            x = torch.cat([adapted, plain])
        return batch.changed(x=x, target=target, columns=columns, mix=mix, deviation=deviation)


@Augment.choices.add("token_adapt")
@dataclass(frozen=True)
class TokenAdapt(LikePixels):
    """A share of every batch augmented through TokenAdapt."""

    adapter: str = artefact("adapter")  # directory of a trained TokenAdapt

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, aspect="")

    def mover(self, codebook: Codebook, device: torch.device) -> Mover:
        """The network."""
        adapter = Adapter.open(Path(self.adapter), codebook, device)
        if adapter.network.regression and self.standardise:
            raise ConfigError("this TokenAdapt gives vectors as they are", "set standardise=false")
        return adapter
