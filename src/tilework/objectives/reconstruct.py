"""Training a tokenizer: reconstruction, codebook and commitment losses (VQ-VAE, eq. 3; ViT-VQGAN).

Warm steps train the plain autoencoder; then k-means of its features becomes the codebook, so that every code starts
where data are. Codes that fall out of use move to features of the current batch.

B batch | h, w code grid | C code dim | K codes
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, distributed, nn

from tilework.core.batch import Batch
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.objectives.adversarial import Adversarial, AdversarialConfig
from tilework.objectives.objective import Objective, ObjectiveConfig
from tilework.objectives.perceptual import Perceptual
from tilework.objectives.task import Task
from tilework.tokenizers.kmeans import kmeans
from tilework.tokenizers.quantise import NearestQuantiser
from tilework.tokenizers.tokenizer import Tokenizer


@ObjectiveConfig.choices.add("reconstruct")
@dataclass(frozen=True)
class ReconstructConfig(ObjectiveConfig):
    """Settings of tokenizer training."""

    task: ClassVar[Task] = Task(labels=False, metric="psnr")
    pixel_loss: Literal["l2", "l1"] = "l2"
    perceptual: float = 0.0  # weight of the perceptual loss; 0: none
    perceptual_weights: str = ""  # file of its VGG-16, as safetensors
    adversarial: AdversarialConfig | None = None
    codebook: float = 1.0
    commitment: float = 0.25
    warm_steps: int = 0  # before the codebook starts
    revive_every: int = 50  # steps between looks for codes out of use; 0: never
    revive_below: float = 0.03  # of the even share

    def check(self, classes: tuple[str, ...], steps: int) -> None:
        """The codebook must have its turn, and the perceptual loss its weights."""
        if steps <= self.warm_steps:
            raise ConfigError(
                f"{steps} steps end before the codebook starts, at step {self.warm_steps}",
                "raise fit.steps or lower objective.warm_steps",
            )
        if self.adversarial is not None and steps <= self.adversarial.start:
            raise ConfigError(
                f"{steps} steps end before the adversarial loss starts, at step {self.adversarial.start}",
                "raise fit.steps or lower objective.adversarial.start",
            )
        if (self.perceptual > 0) != bool(self.perceptual_weights):
            raise ConfigError(
                f"objective.perceptual is {self.perceptual} with weights '{self.perceptual_weights}'",
                "a perceptual loss needs both, its weight and the file of its network",
            )

    def build(self, model: nn.Module, codebook: Codebook | None = None) -> Reconstruct:
        """The objective around a tokenizer."""
        if not isinstance(model, Tokenizer):
            raise TypeError(f"{type(model).__name__} is not a tokenizer")
        if model.stacked or not any(parameter.requires_grad for parameter in model.parameters()):
            raise ConfigError(f"a {type(model).__name__} has nothing to train", "make it with 'tilework tokenizer'")
        return Reconstruct(model, self)


class Reconstruct(Objective):
    """Error of the image through the codes."""

    model: Tokenizer
    usage: Tensor
    changes_weights = True

    def __init__(self, model: Tokenizer, config: ReconstructConfig) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self.register_buffer("usage", torch.zeros(len(model.codebook)))  # (K,) uses since the last revival
        self.adversarial = Adversarial(config.adversarial) if config.adversarial else None
        self.perceptual = Perceptual.load(config.perceptual_weights) if config.perceptual else None

    def forward(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """batch.x: (B, 3, H, W) in [0, 1]."""
        config, since = self.config, draws.step - self.config.warm_steps
        if draws.step == 0:
            self._start(batch.x)
        features = self.model.features(batch.x)  # (B, h, w, C)
        if since < 0:
            losses = self.decoded(features, batch, draws.step)
            unused = sum(0 * p.sum() for p in self.model.quantiser.parameters())  # so that all have a gradient for them
            return {**losses, "loss": losses["loss"] + unused, "perplexity": features.new_zeros(())}
        if isinstance(self.model.quantiser, NearestQuantiser):
            self._tend_codes(features.detach().flatten(0, 2).float(), since)
        found = self.model.quantiser(features)
        losses = self.decoded(found.vectors, batch, draws.step)
        counts = torch.bincount(found.ids.flatten(), minlength=len(self.usage)).float()
        self.usage += _summed(counts)
        p = counts / counts.sum()
        return {
            **losses,
            "loss": losses["loss"] + config.codebook * found.codebook + config.commitment * found.commitment,
            "perplexity": (-(p * p.clamp(min=1e-12).log()).sum()).exp(),
        }

    def decoded(self, vectors: Tensor, batch: Batch, step: int) -> dict[str, Tensor]:
        """What is minimised of that which code vectors give, (B, h, w, C)."""
        return self._losses(self.model.pixels(vectors), batch.x, step)

    def _losses(self, restored: Tensor, x: Tensor, step: int) -> dict[str, Tensor]:
        """What is minimised of the image, and its squared error."""
        mse = (restored - x).square().mean()
        found = {"loss": mse if self.config.pixel_loss == "l2" else (restored - x).abs().mean(), "mse": mse.detach()}
        if self.perceptual is not None:
            seen = self.perceptual(restored, x).mean()
            found |= {"loss": found["loss"] + self.config.perceptual * seen, "perceptual": seen.detach()}
        if self.adversarial is not None:
            added = self.adversarial(restored, x, found["loss"], self.model.last_layer, step)
            found = {**found, **added, "loss": found["loss"] + added["loss"]}
        return found

    @torch.no_grad()
    def _start(self, pixels: Tensor) -> None:
        """The tokenizer's first look at data, the same in all processes."""
        self.model.start(pixels)
        for parameter in self.model.parameters():
            parameter.copy_(_first(parameter.detach()))

    @torch.no_grad()
    def _tend_codes(self, features: Tensor, since: int) -> None:
        """Start the codebook, or move idle codes to features of this batch. features: (P, C)."""
        assert isinstance(self.model.quantiser, NearestQuantiser)
        codes = self.model.quantiser.table
        if since == 0:
            codes.copy_(_first(kmeans(features, len(codes))))
        elif self.config.revive_every and since % self.config.revive_every == 0:
            idle = self.usage < self.config.revive_below * self.usage.mean()
            picked = features[torch.randint(len(features), (len(codes),), device=features.device)]
            codes.copy_(torch.where(idle[:, None], _first(picked), codes))
            self.usage.zero_()

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Squared error and peak signal-to-noise ratio of each image."""
        assert isinstance(model, Tokenizer)
        restored = model.decode(model.encode(batch.x))
        mse = (restored - batch.x).square().mean((1, 2, 3))
        return {"mse": mse, "psnr": -10 * mse.clamp(min=1e-10).log10()}

    def pictures(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Images above what their codes keep."""
        assert isinstance(model, Tokenizer)
        return {"image": batch.x, "decoded": model.decode(model.encode(batch.x))}


def _summed(x: Tensor) -> Tensor:
    """Sum over all processes."""
    if distributed.is_initialized():
        distributed.all_reduce(x)
    return x


def _first(x: Tensor) -> Tensor:
    """The first process's value, in all of them."""
    if distributed.is_initialized():
        distributed.broadcast(x := x.contiguous(), 0)
    return x
