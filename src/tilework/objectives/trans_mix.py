"""TransMix: the label of a mixture by where the class token looks in the last block (Chen et al., 2022).

B batch | N positions | h, w token grid
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tilework.core.batch import Batch, Mix, Target
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.layers.attention import Attention
from tilework.models import Output, Vit
from tilework.objectives.classify import Classify, ClassifyConfig
from tilework.objectives.objective import ObjectiveConfig


@ObjectiveConfig.choices.add("trans_mix")
@dataclass(frozen=True)
class TransMixConfig(ClassifyConfig):
    """Settings of TransMix."""

    def build(self, model: nn.Module, codebook: Codebook | None = None) -> TransMix:
        """The objective around a classifier that reads its class token."""
        if not reads_class_token(model):
            raise ConfigError("TransMix needs a ViT whose head reads the class token", "set model.pool=class")
        return TransMix(model, self.smoothing)


class TransMix(Classify):
    """Cross-entropy of the class logits; the share of each image is the mean of its area and of the attention to it."""

    def answer(self, batch: Batch) -> tuple[Output, Target]:
        """Labels by attention and area; as they are where nothing was mixed."""
        if batch.mix is None:
            return super().answer(batch)
        with looking(self.model) as looks:
            out = self.model(batch.x, mix=batch.mix)
        return out, batch.target.reweigh(looked_share(looks[0], batch.mix, out.grid))


def reads_class_token(model: nn.Module) -> bool:
    """Whether there is a class token whose attention says what the head reads."""
    return isinstance(model, Vit) and model.config.pool == "class"


@contextmanager
def looking(model: nn.Module) -> Iterator[list[Tensor]]:
    """Where the class token looks in the last block, (B, 1 + N), itself first."""
    layer = [module for module in model.modules() if isinstance(module, Attention)][-1]
    layer.looks = []
    try:
        yield layer.looks
    finally:
        layer.looks = None


def looked_share(look: Tensor, mix: Mix, grid: tuple[int, int]) -> Tensor:
    """Mean of area and attention for each source. look: (B, 1 + N); returns (B, 2): the sample itself, its partner."""
    own, patches = mix.at(*grid).flatten(1), look[:, 1:]  # (B, N) both
    seen = (patches * own).sum(1) / patches.sum(1)
    share = (seen + mix.own.mean((1, 2))) / 2
    return torch.stack([share, 1 - share], 1)
