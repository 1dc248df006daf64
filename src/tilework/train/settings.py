"""Settings of the loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import cos, inf, pi
from typing import Literal


@dataclass(frozen=True)
class OptimConfig:
    """The optimiser."""

    name: Literal["adamw", "sgd"] = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.05  # not on biases, norms, positions and class tokens
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.9  # sgd only
    layer_decay: float = 1.0  # learning rate of each layer relative to the next one up
    clip: float = 0.0  # largest norm of the gradient; 0: no clipping
    stem_scale: float = 1.0  # learning rate of the stem relative to the rest, beside layer_decay; 0: it does not learn

    def __post_init__(self) -> None:
        if not 0 <= self.stem_scale < inf:
            raise ValueError(f"stem_scale is {self.stem_scale} but must not be negative")


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate over time."""

    name: Literal["cosine", "constant", "polynomial"] = "cosine"
    warmup_epochs: float = 0.0
    warmup_steps: int = 0  # in addition
    floor: float = 0.0  # of the highest rate, reached at the end
    power: float = 1.0  # polynomial only

    def factor(self, progress: float, warmup: float) -> float:
        """Share of the highest rate: progress and warm-up as shares of the whole run."""
        if progress < warmup:
            return progress / warmup
        if self.name == "constant":
            return 1.0
        left = 1 - (progress - warmup) / max(1e-12, 1 - warmup)
        shape = (1 + cos(pi * (1 - left))) / 2 if self.name == "cosine" else max(0.0, left) ** self.power
        return self.floor + (1 - self.floor) * shape


@dataclass(frozen=True)
class FitConfig:
    """How long, how large, how often."""

    epochs: int = 10  # of the whole run; 0: `steps` decides
    steps: int = 0  # of the whole run; 0: `epochs` decides
    batch: int = 64  # over all processes and accumulated parts
    accumulate: int = 1  # parts a batch is split into
    repeats: int = 1  # augmented copies of an image in a batch (repeated augmentation)
    seed: int = 0
    precision: Literal["fp32", "bf16"] = "fp32"
    ema: float = 0.0  # decay of the averaged weights that evaluation and export use; 0: none
    evaluate_every: int = 1  # epochs; the last is always evaluated; 0: only the last
    save_every: int = 0  # steps; 0: once per epoch
    keep: int = 2  # checkpoints
    log_every: int = 10  # steps
    picture_every: int = 0  # steps, where the objective has something to show; 0: never
    patience: int = 5  # steps in a row with a gradient that is not finite, before training stops
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)

    def total_steps(self, samples: int) -> int:
        """Steps of the whole run on a data set."""
        return self.steps or self.epochs * (samples // self.batch)

    def __post_init__(self) -> None:
        if min(self.epochs, self.steps) < 0:
            raise ValueError(f"epochs is {self.epochs} and steps is {self.steps}: they must not be negative")
        if (self.epochs > 0) == (self.steps > 0):
            raise ValueError(f"epochs is {self.epochs} and steps is {self.steps}: one of them must be 0")
        for name in ("batch", "accumulate", "repeats", "keep", "log_every", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)} but must be at least 1")
        if self.batch % self.accumulate:
            raise ValueError(f"a batch of {self.batch} does not split into {self.accumulate} equal parts")
