"""ReLabel: the label of a crop is what the map says of it (Yun et al., 2021), not that of the whole image.

B batch | K classes
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from tilework.core.batch import Batch
from tilework.core.codebook import Codebook
from tilework.core.rng import Draws
from tilework.models import Output
from tilework.objectives.classify import Classify, ClassifyConfig
from tilework.objectives.objective import ObjectiveConfig
from tilework.objectives.task import Task
from tilework.objectives.token_label import COLUMN, pooled_loss


@ObjectiveConfig.choices.add("relabel")
@dataclass(frozen=True)
class RelabelConfig(ClassifyConfig):
    """Settings of ReLabel."""

    task: ClassVar[Task] = Task(columns=(COLUMN,))

    def build(self, model: nn.Module, codebook: Codebook | None = None) -> Relabel:
        """The objective around a classifier."""
        return Relabel(model, self.smoothing)


class Relabel(Classify):
    """Cross-entropy of the class logits with the map pooled over the crop."""

    def losses(self, out: Output, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """Mean loss."""
        return {"loss": pooled_loss(out, batch, self.smoothing)}
