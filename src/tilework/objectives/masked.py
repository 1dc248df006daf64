"""Masked token modelling: the codes of hidden patches from the visible ones (SeiT++, section 3.2).

B batch | H, W code grid | h, w patch grid | N = h w | n visible | q codes on each side of a patch | p = q q
K codes | C code dim
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from statistics import NormalDist
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.augment import Augment, Embed
from tilework.core.artefact import artefact
from tilework.core.batch import Batch
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws, uniform
from tilework.layers.code_table import CodeTable
from tilework.layers.token_decoder import TokenDecoder
from tilework.models import Model, Visible
from tilework.objectives.masked_published import has_decoder, load_published
from tilework.objectives.objective import Objective, ObjectiveConfig
from tilework.objectives.task import Task
from tilework.tokenizers import Tokenizer
from tilework.tokenizers.tokenizer import decoder_of


@ObjectiveConfig.choices.add("masked")
@dataclass(frozen=True)
class MaskedConfig(ObjectiveConfig):
    """Settings of masked token modelling."""

    task: ClassVar[Task] = Task(labels=False, metric="agreement")
    ratio: tuple[float, float] = (0.4, 1.0)  # of hidden patches, one for each batch: least and most
    mean: float = 0.45  # of the normal distribution that is cut to these
    deviation: float = 0.25
    hidden: Literal["dropped", "partly"] = "dropped"  # partly: the least share; others enter as a vector (published)
    fill: Literal["mask", "class"] = "mask"  # what the decoder sees of hidden patches
    table: Literal["learnt", "frozen", "random"] = "learnt"  # vectors of codes; all but random start as the codebook
    table_deviation: float = 0.02  # of a learnt table at first: answers are no sharper than its vectors are long
    standardise: bool = False  # as in 'embed'
    detach: bool = True  # the table learns from what is seen alone, not from the answers
    width: int = 512  # of the decoder
    depth: int = 4
    heads: int = 16
    dropout: float = 0.1  # of the vectors of codes and in the decoder
    smoothing: float = 0.0
    judged: float = 0.55  # ratio in evaluation
    tokenizer: str = artefact("tokenizer")  # directory, for pictures

    def __post_init__(self) -> None:
        low, high = self.ratio
        if not 0 <= low <= high <= 1 or not 0 <= self.judged <= 1:
            raise ValueError(f"mask ratios {low} to {high}, {self.judged} in evaluation: they must lie in [0, 1]")
        if high == 0 or self.judged == 0:
            raise ValueError("a mask ratio of 0 leaves nothing to predict")
        if self.deviation <= 0 or self.table_deviation <= 0:
            raise ValueError(f"deviations are {self.deviation} and {self.table_deviation} but must be positive")
        if not 0 <= self.smoothing < 1 or not 0 <= self.dropout < 1 or min(self.width, self.depth, self.heads) < 1:
            raise ValueError("smoothing and dropout must lie in [0, 1), width, depth and heads must be at least 1")

    @property
    def learns_table(self) -> bool:
        """Unless it stays the codebook."""
        return self.table != "frozen"

    def preprocess(self) -> tuple[Augment, ...]:
        """Codes to vectors, which the objective does itself."""
        return (Embed(self.standardise),)

    def build(self, model: nn.Module, codebook: Codebook | None = None) -> Masked:
        """The objective around an encoder."""
        if not isinstance(model, Model):
            raise ConfigError(f"a {type(model).__name__} cannot leave patches out", "set model to 'vit'")
        if codebook is None or not codebook.code_dim:
            raise ConfigError("masked token modelling needs code vectors", "train on a token store that has them")
        return Masked(model, self, codebook)


class Masked(Objective):
    """Cross-entropy of the codes of hidden patches; the encoder sees the visible ones alone."""

    model: Model

    def __init__(self, model: Model, config: MaskedConfig, codebook: Codebook) -> None:
        super().__init__()
        self.model, self.config = model, config
        vectors = torch.from_numpy(codebook.table(config.standardise))
        start = torch.randn_like(vectors) if config.table == "random" else vectors / vectors.std().clamp(min=1e-6)
        trained = config.learns_table  # what stays the codebook is not normalised either
        start = config.table_deviation * start if trained else vectors  # for the input, the norm undoes it
        self.table = CodeTable(start, norm=trained, dropout=config.dropout, trained=trained)
        self.bias = nn.Parameter(torch.zeros(len(vectors)))
        self.patch, width = _visible_patch(model, vectors.shape[1])
        self.hidden_patch = nn.Parameter(torch.zeros(width)) if config.hidden == "partly" else None
        self.places = model.grid[0] * model.grid[1]
        self.decoder = TokenDecoder(
            width,
            self.places,
            self.patch**2,
            vectors.shape[1],
            config.width,
            config.depth,
            config.heads,
            config.fill,
            config.dropout,
        )
        grid = (model.grid[0] * self.patch, model.grid[1] * self.patch)
        self._tokenizer = _with_decoder(config.tokenizer, codebook, grid) if config.tokenizer else None

    def forward(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """Mean loss over hidden codes, with one mask ratio for the batch."""
        count = self._hidden_count(sample_ratio(self.config, draws))
        order = draws.uniform("masked", self.places).argsort(1)  # (B, N): hidden patches last
        loss, hits = self._losses(self.model, batch.x, order, count, self.config.smoothing)
        return {"loss": loss.mean(), "agreement": hits.mean()}

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Loss without smoothing and share of right codes, at one ratio and positions that depend on the sample."""
        order, count = self._judged_order(batch)
        loss, hits = self._losses(model, batch.x, order, count, 0.0)
        return {"loss": loss.mean((1, 2)), "agreement": hits.mean((1, 2))}

    def predict(self, model: nn.Module, ids: Tensor, order: Tensor, count: int) -> Tensor:
        """Logits of the codes of every patch when the last `count` patches of an order are hidden.

        ids: (B, H, W); order: (B, N); returns (B, N, p, K).
        """
        return self._logits(self._vectors(model, ids, order, count))

    def _losses(
        self, model: nn.Module, ids: Tensor, order: Tensor, count: int, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """Loss and hit of each hidden code, (B, count, p); others are never compared with anything."""
        hidden = order[:, order.shape[1] - count :, None]  # (B, count, 1)
        vectors = self._vectors(model, ids, order, count)
        chosen = vectors.gather(1, hidden[..., None].expand(-1, -1, *vectors.shape[2:]))  # (B, count, p, C)
        logits = self._logits(chosen)  # (B, count, p, K)
        target = self._by_patch(ids.long()).gather(1, hidden.expand(-1, -1, self.patch**2))  # (B, count, p)
        loss = F.cross_entropy(
            logits.flatten(0, 2).float(), target.flatten(), reduction="none", label_smoothing=smoothing
        )
        return loss.view(target.shape), (logits.argmax(-1) == target).float()

    def _logits(self, vectors: Tensor) -> Tensor:
        """How well each code fits: products with the table, before its norm. vectors: (..., C); returns (..., K)."""
        table = self.table.weight.detach() if self.config.detach else self.table.weight
        return F.linear(vectors, table.to(vectors.dtype), self.bias.to(vectors.dtype))

    def _vectors(self, model: nn.Module, ids: Tensor, order: Tensor, count: int) -> Tensor:
        """What the decoder says of every patch, (B, N, p, C)."""
        seen = kept = order.shape[1] - count
        if self.hidden_patch is not None:  # the encoder gets a fixed number, some of them as this vector
            kept = max(seen, order.shape[1] - self._hidden_count(self.config.ratio[0]))
        out = model(self.table(ids), visible=Visible(order[:, :kept], seen, self.hidden_patch))
        return self.decoder(out.logits, out.tokens[:, :seen], order.argsort(1))

    def _by_patch(self, ids: Tensor) -> Tensor:
        """Codes in the order of their patches, (B, N, p). ids: (B, H, W)."""
        (h, w), q = self.model.grid, self.patch
        return ids.view(-1, h, q, w, q).transpose(2, 3).flatten(3).flatten(1, 2)

    def _hidden_count(self, ratio: float) -> int:
        """Patches, rounded up as published, but for what comes of inexact numbers."""
        return min(self.places, max(1, ceil(ratio * self.places - 1e-6)))

    def _judged_order(self, batch: Batch) -> tuple[Tensor, int]:
        order = Draws(0, 0, batch.index).uniform("masked", self.places).argsort(1)
        return order, self._hidden_count(self.config.judged)

    def pictures(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Hidden patches grey, predictions instead, and what was there, through the tokenizer's decoder."""
        if self._tokenizer is None:
            return {}
        tokenizer, numbers = self._tokenizer
        tokenizer, numbers = tokenizer.to(batch.x.device), numbers.to(batch.x.device)
        order, count = self._judged_order(batch)
        q, grid = self.patch, self.model.grid
        rank = order.argsort(1).view(-1, *grid)
        hidden = (rank >= rank[0].numel() - count).repeat_interleave(q, 1).repeat_interleave(q, 2)  # (B, H, W)
        guess = self.predict(model, batch.x, order, count).argmax(-1)  # (B, N, p)
        guess = guess.view(-1, *grid, q, q).transpose(2, 3).reshape(batch.x.shape)
        original = tokenizer.decode(numbers[batch.x.long()])
        grey = F.interpolate(hidden[:, None].float(), original.shape[2:], mode="nearest")
        filled = torch.where(hidden, guess, batch.x.long())
        return {
            "visible": original * (1 - grey) + 0.5 * grey,
            "predicted": tokenizer.decode(numbers[filled]),
            "original": original,
        }

    def adopt(self, tensors: Mapping[str, Tensor]) -> None:
        """Decoder and table as SeiT++ published them, where a checkpoint has them."""
        if has_decoder(tensors):
            load_published(self, tensors)

    def learnt_table(self) -> Tensor | None:
        """The vectors of the codes, unless they are the codebook still."""
        return self.table.vectors().detach() if self.config.learns_table else None


def sample_ratio(config: MaskedConfig, draws: Draws) -> float:
    """The mask ratio of a step, on the host: a normal distribution cut to an interval, by its inverse."""
    u = float(uniform(draws.seed, 0, np.array([draws.step]), "mask ratio", 1)[0, 0])
    normal, (low, high) = NormalDist(config.mean, config.deviation), config.ratio
    below, above = normal.cdf(low), normal.cdf(high)
    share = below + u * (above - below)
    if not 0 < share < 1:  # the interval lies far out on one side
        return low if config.mean < low else high
    return min(high, max(low, normal.inv_cdf(share)))


def _visible_patch(model: Model, code_dim: int) -> tuple[int, int]:
    """Codes on each side of a patch, and width of the encoder; refuses stems that let hidden patches shine through."""
    h, w = model.grid
    for patch in (1, 2, 4, 8):
        x = torch.randn(1, code_dim, h * patch, w * patch, requires_grad=True)
        try:
            training = model.training
            out = model.eval()(x, visible=Visible(torch.zeros(1, 1, dtype=torch.long)))
        except RuntimeError:
            continue  # another number of tokens than positions
        finally:
            model.train(training)
        if out.stem.shape[2:] != (h, w):
            continue  # one token, which positions made many
        (slope,) = torch.autograd.grad((out.tokens * torch.randn_like(out.tokens)).sum(), x)
        seen = slope[0].abs().sum(0) > 0  # (H, W)
        if seen[patch:].any() or seen[:, patch:].any():
            raise ConfigError("the stem sees codes of neighbouring patches", "set model.stem to 'token_patch'")
        return patch, out.tokens.shape[2]
    raise ConfigError("the model cannot be asked about single patches of codes", "set model.stem to 'token_patch'")


def _with_decoder(path: str, codebook: Codebook, grid: tuple[int, int]) -> tuple[Tokenizer, Tensor]:
    """A tokenizer that can decode a grid, and its number of each code of the data, (K,)."""
    tokenizer, numbers = decoder_of(path, codebook)
    try:
        tokenizer.decode(torch.zeros(1, *grid, dtype=torch.long))
    except RuntimeError as error:
        raise ConfigError(f"{path} cannot decode {grid[0]}x{grid[1]} codes", "leave objective.tokenizer out") from error
    return tokenizer, numbers
