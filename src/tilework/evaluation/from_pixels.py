"""A trained classifier as a function of pixels, with the gradients that attacks need.

Answers always come from the real pipeline: pixels, for a model of tokens through tokenizer, codes and their vectors,
then the evaluation steps of the run. A quantiser has no gradient. Three estimates stand in for it, and none may be
trusted alone: `ste` (the code's vector, with the gradient of the vector that it replaced), `soft` (the code's vector,
with the gradient of softmax(-distance^2 / tau) over all codes), and `unquantised` (the model reads the vector itself).

B batch | H, W pixels | h, w code grid | C code dim | K codes
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.augment import AnyStep, apply_all
from tilework.augment.embed import LookUp
from tilework.core.batch import Batch, Target
from tilework.core.errors import ConfigError, InputError
from tilework.core.rng import Draws
from tilework.data import ImageSource, Source
from tilework.models import Model
from tilework.tokenizers.images_as_codes import ImagesAsCodes

Gradient = Literal["exact", "ste", "soft", "unquantised"]
TAUS = (1 / 16, 1 / 4, 1 / 64)  # of the mean squared distance between nearest codes
SAME = 1e-4  # largest difference between two passes


@dataclass
class FromPixels:
    """Pixels (B, 3, H, W) in [0, 1] to logits (B, K)."""

    model: Model
    source: Source  # images, or images as codes
    steps: tuple[AnyStep, ...]  # from a sample to what the model takes

    def __post_init__(self) -> None:
        self.model.eval().requires_grad_(False)
        if isinstance(self.source, ImagesAsCodes):
            self.source.tokenizer.eval().requires_grad_(False)
        elif not isinstance(self.source, ImageSource):
            raise InputError("a token store has no pixels to change", "give the folder of its images, and --tokenizer")

    @property
    def codes(self) -> ImagesAsCodes | None:
        """The images as codes; None for a model of pixels."""
        return self.source if isinstance(self.source, ImagesAsCodes) else None

    @property
    def images(self) -> ImageSource:
        """The images themselves."""
        source = self.source.images if isinstance(self.source, ImagesAsCodes) else self.source
        assert isinstance(source, ImageSource)
        return source

    @property
    def gradients(self) -> tuple[Gradient, ...]:
        """Those that it has: exact, or estimates."""
        if self.codes is None:
            return ("exact",)
        return ("ste", "unquantised") if self.codes.tokenizer.stacked else ("ste", "soft", "unquantised")

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """The real pipeline, without gradients."""
        return self._answer(x * 255 if self.codes is None else self.ids(x), self.steps)

    @torch.no_grad()
    def ids(self, x: Tensor) -> Tensor:
        """Codes by the run's numbers, (B, h, w) or (B, C, h, w)."""
        return self._codes().sample(self.raw_ids(x))

    @torch.no_grad()
    def raw_ids(self, x: Tensor) -> Tensor:
        """Codes by the tokenizer's numbers."""
        tokenizer = self._codes().tokenizer
        return tokenizer.nearest(tokenizer.features(x))

    def of_ids(self, ids: Tensor) -> Tensor:
        """Logits of codes by the run's numbers."""
        return self._answer(ids, self.steps)

    def of_map(self, vectors: Tensor) -> Tensor:
        """Logits of code vectors, (B, C, h, w), with gradients."""
        return self._answer(vectors, tuple(step for step in self.steps if not isinstance(step, LookUp)))

    def with_gradient(self, gradient: Gradient, tau: float = TAUS[0]) -> Callable[[Tensor], Tensor]:
        """The pipeline with gradients: exact, or estimated. tau: in mean squared distances between nearest codes."""
        if gradient not in self.gradients:
            raise ConfigError(f"gradient '{gradient}' of this model", f"it has {', '.join(self.gradients)}")
        if gradient == "exact":
            return lambda x: self._answer(x * 255, self.steps)

        def ask(x: Tensor) -> Tensor:
            tokenizer = self._codes().tokenizer
            features = tokenizer.features(x)  # (B, h, w, C) or (B, T, C)
            z = features if tokenizer.stacked else tokenizer.quantiser.continuous(features)
            if gradient == "soft":
                scores = tokenizer.quantiser.scores(features, self._used)
                smooth = (scores / (tau * self._unit)).softmax(-1) @ self.table
            elif tokenizer.stacked:
                smooth = z * self._slope + self._shift
            else:
                smooth = z @ self._slope + self._shift
            smooth = smooth.view(len(x), *self._codes().grid, -1).permute(0, 3, 1, 2)
            if gradient == "unquantised":
                return self.of_map(smooth)
            ids = self._codes().sample(tokenizer.nearest(features.detach()))
            exact = self._look_up.apply(self._batch(ids), None).x
            return self.of_map(exact + (smooth - smooth.detach()))

        return ask

    def check(self, x: Tensor) -> list[str]:
        """Refuse a network that answers differently twice, or estimates that change answers; returns warnings."""
        logits, again = self(x), self(x)
        if (logits - again).abs().max() > SAME:
            raise ConfigError("the model answers differently when it is asked twice", "remove what it draws at random")
        estimates = [self.with_gradient(g)(x).detach() for g in self.gradients if g in ("exact", "ste", "soft")]
        if any((logits - other).abs().max() > 10 * SAME for other in estimates):
            raise ConfigError("a step before 'embed' works on codes only", "attack with square or random")
        likely = bool((logits >= 0).all()) and bool(((logits.sum(1) - 1).abs() < 1e-4).all())
        return ["the outputs look like probabilities: DLR and cross-entropy need logits"] if likely else []

    @cached_property
    def table(self) -> Tensor:
        """Vectors of the run's codes as the model sees them, (K, C)."""
        return self._look_up.table

    @property
    def _look_up(self) -> LookUp:
        found = [step for step in self.steps if isinstance(step, LookUp)]
        if len(found) != 1:
            raise ConfigError("the run does not look its codes up in one table", "attack with square or random")
        return found[0]

    @cached_property
    def _used(self) -> Tensor:
        return torch.from_numpy(self._codes().codebook.used).long().to(self.table.device)

    @cached_property
    def _unit(self) -> float:
        return self._codes().tokenizer.quantiser.spacing(self._used)

    @cached_property
    def _linear(self) -> tuple[Tensor, Tensor]:
        """A linear map from the tokenizer's vectors to the model's: exact unless these were learnt, (C, C'), (C',)."""
        tokenizer = self._codes().tokenizer
        code, wanted = tokenizer.codebook[self._used].double(), self.table.double()
        centre, middle = code.mean(0), wanted.mean(0)
        code, wanted = code - centre, wanted - middle
        if tokenizer.stacked:  # each channel has codes of its own
            slope = (code * wanted).sum(0) / code.square().sum(0).clamp(min=1e-12)
            return slope.float(), (middle - slope * centre).float()
        slope = torch.linalg.lstsq(code, wanted).solution
        return slope.float(), (middle - centre @ slope).float()

    @property
    def _slope(self) -> Tensor:
        return self._linear[0]

    @property
    def _shift(self) -> Tensor:
        return self._linear[1]

    def _codes(self) -> ImagesAsCodes:
        if self.codes is None:
            raise ConfigError("a model of pixels has no codes", "give a run on tokens")
        return self.codes

    def _batch(self, x: Tensor) -> Batch:
        labels = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return Batch(x, Target.hard(labels), torch.arange(len(x), device=x.device))

    def _answer(self, x: Tensor, steps: tuple[AnyStep, ...]) -> Tensor:
        batch = self._batch(x)
        return self.model(apply_all(steps, batch, Draws(0, 0, batch.index)).x).logits.float()


def in_parts(ask: Callable[[Tensor], Tensor], x: Tensor, batch: int) -> Tensor:
    """Answers of many images, some after others."""
    return torch.cat([ask(part) for part in x.split(batch)])


def calibration_error(logits: Tensor, y: Tensor, bins: int = 15) -> float:
    """ECE: by how much confidence misses accuracy, over bins of confidence (Guo et al., 2017, eq. 3)."""
    confidence, said = logits.softmax(1).nan_to_num().max(1)
    return confidence_error(confidence, said == y, bins)


def confidence_error(confidence: Tensor, hits: Tensor, bins: int = 15) -> float:
    """The same of answers whose confidence is known, (N,) both."""
    which = (confidence * bins).long().clamp(max=bins - 1)
    gap = F.one_hot(which, bins).double() * (hits.double() - confidence.double())[:, None]
    return float(gap.sum(0).abs().sum() / len(hits))
