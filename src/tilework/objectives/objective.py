"""What every objective takes and gives.

B batch | N tokens | K classes | M classes named per target
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import Tensor, nn

from tilework.augment import Augment
from tilework.core.batch import Batch, Target
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.registry import Registry
from tilework.core.rng import Draws
from tilework.layers.readings import readings
from tilework.models import ModelConfig, Output
from tilework.objectives.task import Task


class Objective(nn.Module):
    """Owns the model; DDP wraps it, export takes `.model` and leaves the rest."""

    model: nn.Module
    changes_weights: bool = False  # whether it writes to parameters itself, not through the optimiser alone

    def __init__(self) -> None:
        super().__init__()
        self.register_forward_hook(_with_readings)

    def forward(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """Means over the batch; `loss` is minimised, the rest is logged."""
        out, target = self.answer(batch)
        return self.losses(out, batch.changed(target=target), draws)

    def answer(self, batch: Batch) -> tuple[Output, Target]:
        """What the model says, once for this and for auxiliary objectives, and the label it should give."""
        return self.model(batch.x, mix=batch.mix), batch.target

    def losses(self, out: Output, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """What `forward` returns, of what the model said; one that asks it in another way overrides `forward`."""
        raise NotImplementedError

    def output(self, model: nn.Module, batch: Batch) -> Output:
        """What a model says of samples as evaluation gives them. model: this one's, or averaged weights of it."""
        found: Output = model(batch.x)
        return found

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """What validation averages, a value for each sample, (B,), where the task's metric needs more than the output.

        model: this one's, or averaged weights of it.
        """
        raise NotImplementedError

    def pictures(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Rows of pictures that show how it goes, (B, 3, H, W) in [0, 1] by name; none by default."""
        return {}

    def save_artefact(self, model: nn.Module, out: Path) -> None:
        """Write what a finished run leaves for others beside its checkpoints; nothing by default."""

    def adopt(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what other people's checkpoint has beside the model; nothing by default."""

    def learnt_table(self) -> Tensor | None:
        """Vectors that it learnt to stand for the codes, (K, C), for runs that start from this one; none by default."""
        return None


def _with_readings(objective: Objective, inputs: object, found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Numbers that the layers noted on the way, for the log, whatever the objective."""
    return {**found, **readings(objective.model)} if objective.training else found


@dataclass(frozen=True)
class ObjectiveConfig:
    """Settings of an objective; the name picks it."""

    choices: ClassVar[Registry[type[ObjectiveConfig]]] = Registry("objective")

    task: ClassVar[Task] = Task()

    @property
    def learns_table(self) -> bool:
        """Whether vectors of the codes are learnt, and kept when a run ends."""
        return False

    @property
    def parts(self) -> tuple[ObjectiveConfig, ...]:
        """This objective and those it is made of, whose columns the data must have."""
        return (self,)

    def check(self, classes: tuple[str, ...], steps: int) -> None:
        """Refuse data or a number of steps that this objective cannot learn from."""

    def preprocess(self) -> tuple[Augment, ...]:
        """Steps between what the objective takes and what its model takes; none by default."""
        return ()

    def suit(self, model: ModelConfig, size: tuple[int, int]) -> tuple[ModelConfig, tuple[int, int]]:
        """The network and the size of images that its artefacts ask for; both as they are by default."""
        return model, size

    def build(self, model: nn.Module, codebook: Codebook | None = None) -> Objective:
        """The objective around a model. codebook: of token stores; None for pixels."""
        raise NotImplementedError


class Combined(Objective):
    """An objective with auxiliary ones added, each with its weight; all read the same forward pass of one model."""

    def __init__(self, main: Objective, extra: dict[str, tuple[float, Objective]]) -> None:
        super().__init__()
        for one in (main, *(objective for _, objective in extra.values())):
            if type(one).losses is Objective.losses:
                raise ConfigError(f"{type(one).__name__} asks the model its own way", "leave run.extra empty")
        self.model = main.model
        self.main = main
        self.weights = {name: weight for name, (weight, _) in extra.items()}
        self.extra = nn.ModuleDict({name: objective for name, (_, objective) in extra.items()})
        self.changes_weights = any(one.changes_weights for one in (main, *(each for _, each in extra.values())))

    def forward(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """The weighted sum, and each auxiliary loss under its name, which also starts what else it logs."""
        said, target = self.main.answer(batch)
        batch = batch.changed(target=target)
        found = self.main.losses(said, batch, draws)
        for name, objective in self.extra.items():
            assert isinstance(objective, Objective)
            added = objective.losses(said, batch, draws)
            loss = added.pop("loss")
            found = {**found, name: loss, "loss": found["loss"] + self.weights[name] * loss}
            found |= {f"{name}_{what}": value for what, value in added.items()}
        return found

    def output(self, model: nn.Module, batch: Batch) -> Output:
        """The main objective's."""
        return self.main.output(model, batch)

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """The main objective's."""
        return self.main.score(model, batch)

    def pictures(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """The main objective's."""
        return self.main.pictures(model, batch)

    def save_artefact(self, model: nn.Module, out: Path) -> None:
        """The main objective's."""
        self.main.save_artefact(model, out)

    def adopt(self, tensors: Mapping[str, Tensor]) -> None:
        """The main objective's."""
        self.main.adopt(tensors)

    def learnt_table(self) -> Tensor | None:
        """The main objective's."""
        return self.main.learnt_table()


def soft_cross_entropy(logits: Tensor, target: Target, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy with sparse soft labels, the rest smoothed over all classes; rows count by their mass.

    logits: (B, K) or (B, N, K); returns (B,) or (B, N).
    """
    log_p = logits.float().log_softmax(-1)
    named, even = (log_p.gather(-1, target.ids) * target.weight).sum(-1), log_p.mean(-1)
    if target.spread is None:
        return -(1 - smoothing) * named - smoothing * even
    return -(1 - smoothing) * (named + target.spread.sum(-1) * even) - smoothing * target.mass * even
