"""Augmentations: settings that are built into steps, and lists of steps that run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import torch

from tilework.core.batch import Batch, Shape, Stage
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.registry import Registry
from tilework.core.rng import Draws

P = TypeVar("P")
CPU = torch.device("cpu")


class Step(Generic[P]):
    """From batch to batch: parameters are drawn for every sample, then applied by a pure function.

    Geometry has one vocabulary: crop, flip and affine are (B, 2, 3) maps from output to input coordinates, both in
    [-1, 1] over the outer edges, as `torch.nn.functional.affine_grid(align_corners=False)` reads them.
    """

    def sample(self, draws: Draws, batch: Batch) -> P:
        """Parameters for each sample."""
        raise NotImplementedError

    def apply(self, batch: Batch, p: P) -> Batch:
        """A new batch; pure."""
        raise NotImplementedError


AnyStep = Step[Any]


@dataclass(frozen=True)
class Augment:
    """Settings of a step; the name picks it."""

    choices: ClassVar[Registry[type[Augment]]] = Registry("augmentation")
    stages: ClassVar[tuple[Stage, ...]] = ("map", "pixels")  # what it can take
    gives: ClassVar[Stage | None] = None  # what it returns, if not what it took
    mirrors: ClassVar[bool] = False  # turns positions around, but not what lies inside them
    dense: ClassVar[bool] = False  # draws a number per element, from torch's generator, which the step seeds

    @property
    def name(self) -> str:
        """Under which it is registered."""
        return self.choices.name_of(type(self))

    def build(self, codebook: Codebook | None = None, device: torch.device = CPU) -> AnyStep:
        """The step for the codes of a data set; codebook: None for pixels."""
        raise NotImplementedError

    def needs_grid(self) -> bool:
        """Whether its input must have positions in the image: codes of a sequence have none."""
        return True

    def output(self, shape: Shape) -> Shape:
        """What samples look like after it; refuses those that it cannot take."""
        return replace(shape, stage=self.gives or shape.stage)


@dataclass(frozen=True)
class Stateless(Augment, Step[P]):
    """Settings that are their own step: nothing of the data set is needed."""

    def build(self, codebook: Codebook | None = None, device: torch.device = CPU) -> Stateless[P]:
        """Itself."""
        return self


@dataclass(frozen=True)
class Fixed(Stateless[None]):
    """Settings of a step that does the same to every sample."""

    def sample(self, draws: Draws, batch: Batch) -> None:
        """Nothing is drawn."""


def need_vectors(codebook: Codebook | None, augment: Augment) -> Codebook:
    """The codebook, refused where there is none or its vectors are not known."""
    if codebook is None:
        raise ConfigError(f"augmentation '{augment.name}' needs a codebook", "train on a token store")
    if not codebook.vectors.shape[1]:
        raise ConfigError(
            f"augmentation '{augment.name}' needs code vectors", "convert the store again with --codebook"
        )
    return codebook


def build_all(
    augments: Sequence[Augment], codebook: Codebook | None = None, device: torch.device = CPU
) -> tuple[AnyStep, ...]:
    """The steps of a list of settings."""
    return tuple(augment.build(codebook, device) for augment in augments)


def apply_all(steps: Sequence[AnyStep], batch: Batch, draws: Draws) -> Batch:
    """Run a list of steps."""
    for step in steps:
        batch = step.apply(batch, step.sample(draws, batch))
    return batch


def output_shape(augments: Sequence[Augment], shape: Shape) -> Shape:
    """What samples look like after a list of augmentations; refuses one that does not fit the data or the list."""
    start, sequence = shape, shape.is_sequence
    for augment in augments:
        if shape.stage not in augment.stages:
            if shape.stage == "stacks" and "ids" in augment.stages:
                what = f"augmentation '{augment.name}' takes one code at a position, and these data have several"
                raise ConfigError(what, "use a recipe without it: linear_cpu takes any codes, dct_cpu coefficients")
            needs = " or ".join(augment.stages)
            hint = "give other data or another recipe" if shape.stage == start.stage else "change the order of the list"
            raise ConfigError(f"augmentation '{augment.name}' takes {needs} but gets {shape.stage}", hint)
        if start.stage == "stacks" and augment.mirrors:
            what = f"augmentation '{augment.name}' mirrors positions, and the codes inside them have sides too"
            raise ConfigError(what, "use 'dct_flip', before 'embed'")
        if sequence and augment.needs_grid():
            what = f"augmentation '{augment.name}' works on positions in the image"
            hint = "use a recipe without it, such as sequence_cpu"
            raise ConfigError(f"{what}, and a sequence of {start.grid[1]} codes has none", hint)
        shape = augment.output(shape)
    return shape
