"""MoCo v3: a view must be told by another one of the same sample among all others (Chen et al., 2021; InfoNCE).

The momentum rises to 1 over the run by half a cosine. Batch norms of the heads see the samples of all
processes, on any device; parts of an accumulated batch are normalised, and compared, one by one.

B batch | D width of the features | E width of what is compared | G samples of all processes
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from math import cos, pi
from typing import ClassVar, Literal

import torch
from torch import Tensor, distributed, nn
from torch.distributed.nn import all_reduce
from torch.nn import functional as F

from tilework.augment.two_views import COLUMN, OtherView
from tilework.core.batch import Batch
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.models.model import stem_of
from tilework.objectives.objective import Objective, ObjectiveConfig
from tilework.objectives.task import Task


@ObjectiveConfig.choices.add("moco")
@dataclass(frozen=True)
class MocoConfig(ObjectiveConfig):
    """Settings of MoCo v3."""

    task: ClassVar[Task] = Task(labels=False, metric="agreement")
    momentum: float = 0.99  # of the encoder that gives the keys
    temperature: float = 0.2
    hidden: int = 4096
    outputs: int = 256
    features: int = 0  # width of what a head would read; 0: that of the stem's tokens, as in a ViT
    rise: Literal["cosine", "none"] = "cosine"  # of the momentum to 1 over the run

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1 or self.temperature <= 0:
            raise ValueError(f"momentum {self.momentum} must lie in [0, 1), temperature {self.temperature} above 0")
        if self.rise not in ("cosine", "none"):
            raise ValueError(f"the momentum has no rise '{self.rise}': give cosine or none")

    def momentum_at(self, step: int, steps: int) -> float:
        """Momentum after so many of all steps; as it starts where their number is not known."""
        left = (1 + cos(pi * step / steps)) / 2 if steps and self.rise == "cosine" else 1.0
        return 1 - (1 - self.momentum) * left

    def build(self, model: nn.Module, codebook: Codebook | None = None) -> Moco:
        """The objective around an encoder."""
        return Moco(model, self)


class Moco(Objective):
    """Symmetric InfoNCE between predictions of one view and keys of the other."""

    changes_weights = True

    def __init__(self, model: nn.Module, config: MocoConfig) -> None:
        super().__init__()
        self.model, self.config = model, config
        width = config.features or stem_of(model).width
        self.projector = mlp(width, config.hidden, config.hidden, config.outputs)
        self.predictor = mlp(config.outputs, config.hidden, config.outputs)
        self.slow_model = deepcopy(model).requires_grad_(False)
        self.slow_projector = deepcopy(self.projector).requires_grad_(False)
        self.followed = -1  # the step in which the slow encoder last moved

    def forward(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """Mean loss over both ways."""
        other = batch.columns.get(COLUMN)
        if not isinstance(other, OtherView):
            raise ConfigError("the samples come in one view only", "let run.augment end with 'two_views'")
        views = (batch.x, other.x)
        if self.training and draws.step != self.followed:  # once per step, however many parts a batch has
            self._follow(self.config.momentum_at(draws.step, draws.steps))
            self.followed = draws.step
        queries = [self.predictor(self.projector(self.model(x).logits)) for x in views]  # each (B, E)
        with torch.no_grad():
            keys = [self.slow_projector(self.slow_model(x).logits) for x in views]
        temperature = self.config.temperature
        return {"loss": info_nce(queries[0], keys[1], temperature) + info_nce(queries[1], keys[0], temperature)}

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Cosine between the prediction and the key of each sample."""
        self.eval()  # batch norms at rest; the next step wakes them
        query = self.predictor(self.projector(model(batch.x).logits))
        return {"agreement": F.cosine_similarity(query, self.slow_projector(self.slow_model(batch.x).logits))}

    @torch.no_grad()
    def _follow(self, momentum: float) -> None:
        """Move the slow encoder a little towards the other one."""
        for slow, fast in ((self.slow_model, self.model), (self.slow_projector, self.projector)):
            for behind, ahead in zip(slow.parameters(), fast.parameters(), strict=True):
                behind.lerp_(ahead, 1 - momentum)


class GlobalBatchNorm(nn.BatchNorm1d):
    """Batch norm over the samples of all processes, as many in each; `nn.SyncBatchNorm` would not run on CPUs."""

    def forward(self, input: Tensor) -> Tensor:  # (B, E)
        """Returns (B, E)."""
        if not self.training or not distributed.is_initialized() or distributed.get_world_size() == 1:
            return super().forward(input)
        with torch.autocast(input.device.type, enabled=False):
            world, x = distributed.get_world_size(), input.float()
            mean = all_reduce(x.mean(0)) / world
            variance = all_reduce((x - mean).square().mean(0)) / world
            y = (x - mean) * (variance + self.eps).rsqrt()
            if self.affine:
                y = y * self.weight + self.bias
        count = world * len(x)
        self._note(mean.detach(), variance.detach() * count / max(1, count - 1))
        return y.to(input.dtype)

    @torch.no_grad()
    def _note(self, mean: Tensor, variance: Tensor) -> None:
        """Take the statistics over for evaluation. Both (E,)."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        assert self.momentum is not None
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance, self.momentum)
        self.num_batches_tracked += 1


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with batch norm, and ReLU between; the last norm has no scale."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths[:-1]):
        layers += [nn.Linear(inputs, outputs, bias=False), GlobalBatchNorm(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(
        *layers, nn.Linear(widths[-2], widths[-1], bias=False), GlobalBatchNorm(widths[-1], affine=False)
    )


def info_nce(query: Tensor, key: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of finding the own key among those of all processes, times 2 temperature. Both (B, E)."""
    query, key = F.normalize(query.float(), dim=1), F.normalize(key.float(), dim=1)
    keys, first = key, 0
    if distributed.is_initialized():
        parts = [torch.empty_like(key) for _ in range(distributed.get_world_size())]
        distributed.all_gather(parts, key.contiguous())
        keys, first = torch.cat(parts), distributed.get_rank() * len(key)  # (G, E)
    own = torch.arange(first, first + len(query), device=query.device)
    return 2 * temperature * F.cross_entropy(query @ keys.T / temperature, own)
