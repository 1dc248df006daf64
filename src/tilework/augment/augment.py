"""What an augmentation is, and how a list of them runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from tilework.core.batch import Batch, Stage
from tilework.core.errors import ConfigError
from tilework.core.registry import Registry
from tilework.core.rng import Draws


@dataclass(frozen=True)
class Augment:
    """A step from batch to batch; its settings are its fields and the name picks it.

    Geometry has one vocabulary: crop, flip and affine are (B, 2, 3) maps from output to input coordinates, both in
    [-1, 1] over the outer edges, as `torch.nn.functional.affine_grid(align_corners=False)` reads them.
    """

    choices: ClassVar[Registry[type[Augment]]] = Registry("augmentation")
    stages: ClassVar[tuple[Stage, ...]] = ("map", "pixels")  # what it can take
    gives: ClassVar[Stage | None] = None  # what it returns, if not what it took
    mirrors: ClassVar[bool] = False  # turns places around, not what lies inside them
    dense: ClassVar[bool] = False  # draws a number per element, from torch's generator, which the step seeds

    def bind(self, codebook: Tensor | None, table: Tensor | None = None) -> Augment:
        """The same step with what it needs of the data.

        codebook: the tokenizer's vectors of the codes, (K, C); table: vectors that were learnt to stand for them.
        """
        return self

    def needs_places(self) -> bool:
        """Whether its input must have places in the image: codes of a sequence have none."""
        return True

    def sample(self, draws: Draws, batch: Batch) -> Any:
        """Parameters for each sample."""
        return None

    def apply(self, batch: Batch, p: Any) -> Batch:
        """A new batch; pure."""
        raise NotImplementedError


def apply_all(augments: Sequence[Augment], batch: Batch, draws: Draws) -> Batch:
    """Run a list of augmentations."""
    for augment in augments:
        batch = augment.apply(batch, augment.sample(draws, batch))
    return batch


def check_chain(augments: Sequence[Augment], stage: Stage, end: Stage | None = None) -> None:
    """Refuse a list whose steps do not fit the data or each other, or that does not end in what the model takes."""
    start = stage
    for augment in augments:
        name = Augment.choices.name_of(type(augment))
        if stage not in augment.stages:
            needs = " or ".join(augment.stages)
            hint = "give other data or another recipe" if stage == start else "change the order of the list"
            raise ConfigError(f"augmentation '{name}' takes {needs} but gets {stage}", hint)
        if start == "stacks" and augment.mirrors:
            what = f"augmentation '{name}' mirrors places, and the codes inside them have sides too"
            raise ConfigError(what, "use 'dct_flip', before 'embed'")
        stage = augment.gives or stage
    if end is not None and stage != end:
        raise ConfigError(f"the augmentations end in {stage} but the model takes {end}", "add 'embed' or change stem")


def check_places(augments: Sequence[Augment], length: int) -> None:
    """Refuse steps that cut, move or mix places, for sequences of `length` codes that have none."""
    for augment in augments:
        if augment.needs_places():
            name = Augment.choices.name_of(type(augment))
            raise ConfigError(
                f"augmentation '{name}' works on places of the image, and a sequence of {length} codes has none",
                "use a recipe without it, such as sequence_cpu",
            )
