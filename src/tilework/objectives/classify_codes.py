"""Classification of codes whose vectors are trained with the model (SeiT++, fine-tuning after masked token modelling).

B batch | H, W code grid | K codes | C code dim
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tilework.augment import Augment, Embed
from tilework.core.batch import Batch, Target
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.layers.code_table import CodeTable
from tilework.models import Output
from tilework.objectives.classify import Classify, ClassifyConfig
from tilework.objectives.objective import ObjectiveConfig


@ObjectiveConfig.choices.add("classify_codes")
@dataclass(frozen=True)
class ClassifyCodesConfig(ClassifyConfig):
    """Settings of classification with a trained table, which starts as the one that the run starts with."""

    standardise: bool = False  # as in 'embed', where there is none to start with
    dropout: float = 0.1  # of the vectors of codes

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout} but must lie in [0, 1)")

    @property
    def learns_table(self) -> bool:
        """It does."""
        return True

    def preprocess(self) -> tuple[Augment, ...]:
        """Codes to vectors, which the objective does itself."""
        return (Embed(self.standardise),)

    def build(self, model: nn.Module, codebook: Codebook | None = None) -> ClassifyCodes:
        """The objective around a classifier of code maps."""
        if codebook is None or not codebook.code_dim:
            raise ConfigError("a trained table starts with code vectors", "train on a token store that has them")
        table = CodeTable(torch.from_numpy(codebook.table(self.standardise)), dropout=self.dropout)
        return ClassifyCodes(model, table, self.smoothing)


class ClassifyCodes(Classify):
    """Cross-entropy of the class logits of codes."""

    def __init__(self, model: nn.Module, table: CodeTable, smoothing: float) -> None:
        super().__init__(model, smoothing)
        self.table = table

    def answer(self, batch: Batch) -> tuple[Output, Target]:
        """What the model says of codes, x: (B, H, W)."""
        return self.model(self.table(batch.x), mix=batch.mix), batch.target

    def output(self, model: nn.Module, batch: Batch) -> Output:
        """The same in evaluation."""
        found: Output = model(self.table(batch.x))
        return found

    def learnt_table(self) -> Tensor | None:
        """The trained vectors."""
        return self.table.vectors().detach()
