"""Classification that remembers how early and how steadily each example is learnt (C-score: Jiang et al., 2021).

The score of an example is its cumulative confidence: the mean probability of its class over all its visits during
training, the stand-in for the C-score that Jiang et al. (section 5) find closest to it.

B batch | K classes | N training samples
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tilework.core.batch import Batch
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.models import Output
from tilework.objectives.classify import Classify, ClassifyConfig
from tilework.objectives.objective import ObjectiveConfig, soft_cross_entropy


@ObjectiveConfig.choices.add("classify_scored")
@dataclass(frozen=True)
class ClassifyScoredConfig(ClassifyConfig):
    """Settings of scored classification."""

    samples: int = 0  # of the training data

    def build(self, model: nn.Module, codebook: Codebook | None = None) -> ClassifyScored:
        """The objective around a classifier."""
        return ClassifyScored(model, self.smoothing, self.samples)


class ClassifyScored(Classify):
    """`Classify`, with two numbers per training sample that checkpoints keep and exports leave out."""

    confidence: Tensor  # (N,) summed probability of the true class
    visits: Tensor  # (N,)

    def __init__(self, model: nn.Module, smoothing: float, samples: int) -> None:
        super().__init__(model, smoothing)
        if samples < 1:
            raise ConfigError(f"scores of {samples} samples", "set objective.samples to the size of the training data")
        self.register_buffer("confidence", torch.zeros(samples))
        self.register_buffer("visits", torch.zeros(samples))

    def losses(self, out: Output, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """Mean loss; mixed samples have no class of their own and count for nothing."""
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            raise ConfigError("scores are gathered in one process", "run it without torchrun")
        with torch.no_grad():
            number = batch.index % len(self.visits)
            counts = (batch.target.weight[:, 0] == 1).float()
            right = out.logits.float().softmax(1).gather(1, batch.target.ids[:, :1])[:, 0]
            self.confidence.index_add_(0, number, right * counts)
            self.visits.index_add_(0, number, counts)
        return {"loss": soft_cross_entropy(out.logits, batch.target, self.smoothing).mean()}

    def scores(self) -> Tensor:
        """Mean confidence of each sample, (N,); not a number for one never seen unmixed."""
        return self.confidence / self.visits
