"""TL-Align: the label of a mixture follows its tokens through attention (Xiao et al., 2023, eqs. 5 and 6).

Every token begins with the labels of what lies under it, the class token with those of the whole by area. Attention
averages labels as it averages tokens, and rows that sum to one keep every label a mean of those of the sources: the
blocks carry one number for each source, and the classes come in at the end.

B batch | S sources
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from tilework.core.batch import Batch, Target
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.models import Model, Output
from tilework.objectives.classify import Classify, ClassifyConfig
from tilework.objectives.objective import ObjectiveConfig
from tilework.objectives.token_label import TokenLabel, TokenLabelConfig


@ObjectiveConfig.choices.add("tl_align")
@dataclass(frozen=True)
class TlAlignConfig(ClassifyConfig):
    """Settings of classification by aligned labels."""

    def build(self, model: nn.Module, codebook: Codebook | None = None) -> TlAlign:
        """The objective around a classifier that follows the sources of a mixture."""
        return TlAlign(_tracking(model), self.smoothing)


@ObjectiveConfig.choices.add("tl_align_token_label")
@dataclass(frozen=True)
class TlAlignTokenLabelConfig(TokenLabelConfig):
    """Settings of token labelling whose class label is aligned."""

    def build(self, model: nn.Module, codebook: Codebook | None = None) -> TlAlignTokenLabel:
        """The objective around such a classifier with a dense head."""
        super().build(_tracking(model), codebook)  # refuses a model without that head
        if self.class_target != "label":
            raise ConfigError("TL-Align follows the labels of images, not their maps", "set class_target=label")
        return TlAlignTokenLabel(model, self)


class TlAlign(Classify):
    """Cross-entropy of the class logits with the label that reached what the head reads."""

    def answer(self, batch: Batch) -> tuple[Output, Target]:
        """Labels by the share of each source; as they are where nothing was mixed."""
        if batch.mix is None:
            return super().answer(batch)
        out = self.model(batch.x, mix=batch.mix, track=True)
        return out, batch.target.reweigh(out.share)


class TlAlignTokenLabel(TlAlign, TokenLabel):
    """Token labelling, where the tokens learn their maps and the class token the aligned label."""


def _tracking(model: nn.Module) -> nn.Module:
    if not isinstance(model, Model) or not model.tracks:
        raise ConfigError(
            f"a {type(model).__name__} cannot follow the sources of a mixture", "choose a vit, or objective 'classify'"
        )
    return model
