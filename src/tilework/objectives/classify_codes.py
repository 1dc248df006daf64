"""Classification of codes whose vectors are trained with the model (SeiT++, fine-tuning after masked token modelling).

What is learnt of the vectors is another objective of classification: the plain one, or one whose labels follow tokens
(TL-Align), attention (TransMix) or label maps (token labelling).

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
from tilework.core.rng import Draws
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
    inner: ClassifyConfig | None = None  # of the vectors: tl_align, trans_mix, token_label, ...; None: classify

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout} but must lie in [0, 1)")
        if self.inner is None:
            return
        if not isinstance(self.inner, ClassifyConfig) or self.inner.learns_table:
            raise ValueError(f"inner is {self.choices.name_of(type(self.inner))}, no objective that classifies vectors")
        if self.inner.smoothing != self.smoothing:
            raise ValueError(f"smoothing is {self.smoothing} here and {self.inner.smoothing} in inner: give one figure")

    @property
    def learns_table(self) -> bool:
        """It does."""
        return True

    @property
    def parts(self) -> tuple[ObjectiveConfig, ...]:
        """This one, and the one inside."""
        return (self,) if self.inner is None else (self, self.inner)

    def preprocess(self) -> tuple[Augment, ...]:
        """Codes to vectors, which the objective does itself."""
        return (Embed(self.standardise),)

    def build(self, model: nn.Module, codebook: Codebook | None = None) -> ClassifyCodes:
        """The objective around a classifier of code maps."""
        if codebook is None or not codebook.code_dim:
            raise ConfigError("a trained table starts with code vectors", "train on a token store that has them")
        table = CodeTable(torch.from_numpy(codebook.table(self.standardise)), dropout=self.dropout)
        inner = Classify(model, self.smoothing) if self.inner is None else self.inner.build(model, codebook)
        return ClassifyCodes(inner, table)


class ClassifyCodes(Classify):
    """An objective of vectors, on the trained vectors of codes."""

    def __init__(self, inner: Classify, table: CodeTable) -> None:
        super().__init__(inner.model, inner.smoothing)
        self.table = table
        self._inner = (inner,)  # no module of its own: its model is this one's, and it has nothing else to train

    def answer(self, batch: Batch) -> tuple[Output, Target]:
        """What the model says of codes, x: (B, H, W), and the label that it should give."""
        return self._inner[0].answer(self._embedded(batch))

    def losses(self, out: Output, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """Those of the objective of vectors."""
        return self._inner[0].losses(out, batch, draws)

    def output(self, model: nn.Module, batch: Batch) -> Output:
        """The same in evaluation."""
        return self._inner[0].output(model, self._embedded(batch))

    def learnt_table(self) -> Tensor | None:
        """The trained vectors."""
        return self.table.vectors().detach()

    def _embedded(self, batch: Batch) -> Batch:
        return batch.changed(x=self.table(batch.x))
