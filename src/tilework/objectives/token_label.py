"""Token labelling: every token learns the label of its position, the class token that of the image (LV-ViT, eq. 5).

B batch | N tokens | K classes
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from tilework.core.batch import Batch
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.data.score_map import ScoreMap
from tilework.models import Output, Vit
from tilework.objectives.classify import Classify, ClassifyConfig
from tilework.objectives.objective import ObjectiveConfig, soft_cross_entropy
from tilework.objectives.task import Task

COLUMN = "label_map"


def label_map(batch: Batch) -> ScoreMap:
    """The label maps of a batch."""
    column = batch.columns.get(COLUMN)
    if not isinstance(column, ScoreMap):
        raise ConfigError("the data have no label maps", "make them with 'tilework annotate'")
    return column


def pooled_loss(out: Output, batch: Batch, smoothing: float) -> Tensor:
    """Mean loss of the class logits by what the maps say of each sample as a whole; filled positions say nothing."""
    label = label_map(batch).target(1, 1).each(lambda part: part[:, 0])  # (B, M), mixed as the sample is
    return (soft_cross_entropy(out.logits, label, smoothing) / label.mass.clamp(min=1e-6)).mean()


@ObjectiveConfig.choices.add("token_label")
@dataclass(frozen=True)
class TokenLabelConfig(ClassifyConfig):
    """Settings of token labelling."""

    task: ClassVar[Task] = Task(columns=(COLUMN,))
    class_weight: float = 1.0
    dense_weight: float = 0.5
    class_target: Literal["label", "map"] = "label"  # map: pooled over the sample, as in the published code

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.class_target not in ("label", "map"):
            raise ValueError(f"class_target is {self.class_target} but must be label or map")

    def build(self, model: nn.Module, codebook: Codebook | None = None) -> TokenLabel:
        """The objective around a classifier with a dense head."""
        if not isinstance(model, Vit) or model.aux_head is None:
            raise ConfigError(f"a {type(model).__name__} has no head for every token", "set model.dense=true")
        return TokenLabel(model, self)


class TokenLabel(Classify):
    """Weighted sum of the class loss and the mean loss of the tokens, each by how much of it is labelled."""

    def __init__(self, model: nn.Module, config: TokenLabelConfig) -> None:
        super().__init__(model, config.smoothing)
        self.weights, self.pooled = (config.class_weight, config.dense_weight), config.class_target == "map"

    def losses(self, out: Output, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """Mean losses."""
        assert out.dense is not None  # the configuration refused models without
        if self.pooled:
            whole = pooled_loss(out, batch, self.smoothing)
        else:
            whole = soft_cross_entropy(out.logits, batch.target, self.smoothing).mean()
        target = label_map(batch).target(*out.grid)
        dense = soft_cross_entropy(out.dense, target, self.smoothing).sum() / target.mass.sum().clamp(min=1e-6)
        return {"loss": self.weights[0] * whole + self.weights[1] * dense, "class": whole, "dense": dense}
