"""Classification with soft, mixed and smoothed labels.

B batch | K classes
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from tilework.core.batch import Batch
from tilework.core.bounds import check_below_one
from tilework.core.codebook import Codebook
from tilework.core.errors import InputError
from tilework.core.rng import Draws
from tilework.models import Output
from tilework.objectives.objective import Objective, ObjectiveConfig, soft_cross_entropy


@ObjectiveConfig.choices.add("classify")
@dataclass(frozen=True)
class ClassifyConfig(ObjectiveConfig):
    """Settings of classification."""

    smoothing: float = 0.1

    def __post_init__(self) -> None:
        check_below_one(self, "smoothing")

    def check(self, classes: tuple[str, ...], steps: int) -> None:
        """One class cannot be told from another."""
        if len(classes) < 2:
            raise InputError(f"the data have one class only ('{classes[0]}')", "add a folder for a second class")

    def build(self, model: nn.Module, codebook: Codebook | None = None) -> Classify:
        """The objective around a classifier."""
        return Classify(model, self.smoothing)


class Classify(Objective):
    """Cross-entropy of the class logits."""

    def __init__(self, model: nn.Module, smoothing: float = 0.1) -> None:
        super().__init__()
        self.model = model
        self.smoothing = smoothing

    def losses(self, out: Output, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """Mean loss."""
        return {"loss": soft_cross_entropy(out.logits, batch.target, self.smoothing).mean()}
