"""What a recipe returns: the parts of a run, each an independent choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tilework.augment import Augment
from tilework.core.registry import Registry
from tilework.models import ModelConfig
from tilework.objectives import ObjectiveConfig
from tilework.train import FitConfig


@dataclass(frozen=True)
class Extra:
    """An auxiliary objective and its weight; gone when the model is exported."""

    objective: ObjectiveConfig
    weight: float = 1.0


@dataclass(frozen=True)
class Run:
    """A whole training run but for its data."""

    model: ModelConfig
    objective: ObjectiveConfig
    augment: tuple[Augment, ...]
    evaluation: tuple[Augment, ...]
    extra: tuple[Extra, ...] = ()
    size: tuple[int, int] = (96, 96)  # of images, in pixels; token stores have their own grid
    max_broken: float = 0.05  # share of unreadable images above which a folder is refused
    fit: FitConfig = field(default_factory=FitConfig)


Recipe = Callable[[], Run]
recipes: Registry[Recipe] = Registry("recipe")


def recipe(function: Recipe) -> Recipe:
    """File a recipe under the name of its function."""
    return recipes.add(function.__name__)(function)
