"""Settings of the training loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import cos, inf, pi
from typing import Literal

from tilework.core.bounds import check_positive, check_shares


@dataclass(frozen=True)
class OptimConfig:
    """The optimiser."""

    name: Literal["adamw", "sgd"] = "adamw"
    lr: float = 1e-3  # peak learning rate
    weight_decay: float = 0.05  # not on biases, norms, position embeddings and class tokens
    betas: tuple[float, float] = (0.9, 0.999)  # AdamW only
    momentum: float = 0.9  # SGD only
    layer_decay: float = 1.0  # learning rate of each layer relative to the layer above
    clip: float = 0.0  # largest gradient norm; 0: no clipping
    stem_scale: float = 1.0  # factor on the learning rate of the stem, besides layer_decay; 0: frozen

    def __post_init__(self) -> None:
        if not (0 <= self.lr < inf and self.weight_decay >= 0 and self.clip >= 0):
            raise ValueError("lr, weight_decay and clip must be finite and not negative")
        if not all(0 <= beta < 1 for beta in (*self.betas, self.momentum)):
            raise ValueError(f"betas {self.betas} and momentum {self.momentum} must lie in [0, 1)")
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"layer_decay is {self.layer_decay} but must lie above 0 and at most at 1")
        if not 0 <= self.stem_scale < inf:
            raise ValueError(f"stem_scale is {self.stem_scale} but must be finite and not negative")


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate schedule."""

    name: Literal["cosine", "constant", "polynomial", "steps"] = "cosine"
    warmup_epochs: float = 0.0  # linear warm-up
    warmup_steps: int = 0  # in addition to warmup_epochs
    floor: float = 0.0  # final learning rate as a share of the peak
    power: float = 1.0  # polynomial only
    milestones: tuple[float, ...] = (8 / 12, 11 / 12)  # steps only: shares of the run after which the rate falls
    fall: float = 0.1  # steps only: by this factor each time

    def __post_init__(self) -> None:
        check_shares(self, "floor")
        check_positive(self, "power")
        if self.warmup_epochs < 0 or self.warmup_steps < 0:
            raise ValueError(f"warmup_epochs={self.warmup_epochs:g} and warmup_steps={self.warmup_steps} are below 0")

    def factor(self, progress: float, warmup: float) -> float:
        """Learning rate as a share of the peak. progress, warmup: shares of the whole run."""
        if progress < warmup:
            return progress / warmup
        if self.name == "constant":
            return 1.0
        if self.name == "steps":
            return float(self.fall ** sum(progress >= share for share in self.milestones))
        left = 1 - (progress - warmup) / max(1e-12, 1 - warmup)
        shape = (1 + cos(pi * (1 - left))) / 2 if self.name == "cosine" else max(0.0, left) ** self.power
        return self.floor + (1 - self.floor) * shape


@dataclass(frozen=True)
class FitConfig:
    """The training loop: length, batch size, checkpoints, logging."""

    epochs: int = 10  # length of the run; 0: `steps` sets it
    steps: int = 0  # length of the run; 0: `epochs` sets it
    batch: int = 64  # batch size over all processes and accumulation steps
    accumulate: int = 1  # gradient accumulation steps per batch
    repeats: int = 1  # augmented copies of each image in a batch (repeated augmentation)
    order: Literal["auto", "shuffle", "stream"] = "auto"  # of samples; stream: shard by shard, as auto for far stores
    lanes: int = 16  # shards read at a time by all processes together, where they are read one after another
    seed: int = 0  # of initial weights, data order and augmentation
    precision: Literal["fp32", "bf16"] = "fp32"  # bf16: autocast
    # how steps are computed, not what: a run may be resumed with others
    shard: bool = field(default=False, compare=False)  # divide weights and optimiser among processes (FSDP2)
    activation_checkpointing: bool = field(default=False, compare=False)  # compute blocks again instead of keeping them
    compile: bool = field(default=False, compare=False)  # the network by torch.compile; needs a C++ compiler
    ema: float = 0.0  # decay of averaged weights, which evaluation and export use; 0: none
    evaluate_every: int = 1  # epochs between evaluations; 0: only after the last epoch, which is always evaluated
    evaluate_training: bool = False  # evaluate the training samples too, without augmentation; figures train_*
    save_every: int = 0  # steps between checkpoints; 0: one per epoch
    keep: int = 2  # number of checkpoints kept
    log_every: int = 10  # steps between log lines
    picture_every: int = 0  # steps between sample images, for objectives that draw them; 0: never
    early_stop: int = 0  # evaluations without a better figure before training ends; 0: never
    patience: int = 5  # consecutive steps with non-finite gradients before training fails
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)

    def total_steps(self, samples: int) -> int:
        """Steps of the run on a data set of so many samples."""
        return self.steps or self.epochs * (samples // self.batch)

    def __post_init__(self) -> None:
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema is {self.ema} but must lie in [0, 1)")
        if self.early_stop < 0:
            raise ValueError(f"early_stop is {self.early_stop} but must not be negative")
        if min(self.epochs, self.steps) < 0:
            raise ValueError(f"epochs is {self.epochs} and steps is {self.steps}: they must not be negative")
        if (self.epochs > 0) == (self.steps > 0):
            raise ValueError(f"epochs is {self.epochs} and steps is {self.steps}: exactly one must be above 0")
        for name in ("seed", "evaluate_every", "save_every", "picture_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)} but must not be negative")
        if self.seed >= 1 << 63:
            raise ValueError(f"seed is {self.seed} but must be below 2^63")
        for name in ("batch", "accumulate", "repeats", "lanes", "keep", "log_every", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)} but must be at least 1")
        if self.batch % self.accumulate:
            raise ValueError(f"batch is {self.batch}, which is not divisible by accumulate={self.accumulate}")
