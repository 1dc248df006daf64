"""Training a tokenizer: reconstruction, codebook and commitment losses (VQ-VAE, eq. 3; ViT-VQGAN).

The first steps train the plain autoencoder; then k-means of its features becomes the codebook, so that every code
starts where data are. Codes that fall out of use move to features of the current batch.

B batch | h, w code grid | C code dim | K codes
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from tilework.core.batch import Batch
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.objectives.objective import Objective, ObjectiveConfig
from tilework.tokenizers.kmeans import kmeans
from tilework.tokenizers.tokenizer import Tokenizer


@ObjectiveConfig.choices.add("reconstruct")
@dataclass(frozen=True)
class ReconstructConfig(ObjectiveConfig):
    """Settings of tokenizer training."""

    warm_steps: int = 200  # before the codebook starts
    commitment: float = 0.25
    revive_every: int = 50  # steps between looks for codes out of use; 0: never
    revive_below: float = 0.03  # of the even share

    def check(self, classes: tuple[str, ...], steps: int) -> None:
        """The codebook must have its turn."""
        if steps <= self.warm_steps:
            raise ConfigError(
                f"{steps} steps end before the codebook starts, at step {self.warm_steps}",
                "raise fit.steps or lower objective.warm_steps",
            )

    def build(self, model: nn.Module) -> Reconstruct:
        """The objective around a tokenizer."""
        if not isinstance(model, Tokenizer):
            raise TypeError(f"{type(model).__name__} is not a tokenizer")
        return Reconstruct(model, self)


class Reconstruct(Objective):
    """Mean squared error of the image through the codes."""

    model: Tokenizer
    usage: Tensor

    def __init__(self, model: Tokenizer, config: ReconstructConfig) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self.register_buffer("usage", torch.zeros(len(model.codebook)))  # (K,) uses since the last revival

    def forward(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """batch.x: (B, 3, H, W) in [0, 1]."""
        features = self.model.features(batch.x)  # (B, h, w, C)
        since = draws.step - self.config.warm_steps
        if since < 0:
            mse = (self.model.pixels(features) - batch.x).square().mean()
            unused = 0 * self.model.codebook.sum()  # so that every process has a gradient for it
            return {"loss": mse + unused, "mse": mse.detach(), "perplexity": mse.new_zeros(())}
        self._tend_codes(features.detach().flatten(0, 2).float(), since)
        ids = self.model.nearest(features.detach())  # (B, h, w)
        vectors = F.embedding(ids, self.model.codebook)  # the gradient of [ids] varies with the threads
        codebook = (vectors - features.detach()).square().sum(-1).mean()
        commitment = (vectors.detach() - features).square().sum(-1).mean()
        through = features + (vectors - features).detach()  # straight-through
        mse = (self.model.pixels(through) - batch.x).square().mean()
        counts = torch.bincount(ids.flatten(), minlength=len(self.usage)).float()
        self.usage += _summed(counts)
        p = counts / counts.sum()
        return {
            "loss": mse + codebook + self.config.commitment * commitment,
            "mse": mse.detach(),
            "perplexity": (-(p * p.clamp(min=1e-12).log()).sum()).exp(),
        }

    @torch.no_grad()
    def _tend_codes(self, features: Tensor, since: int) -> None:
        """Start the codebook, or move idle codes to features of this batch. features: (P, C)."""
        codes = self.model.get_parameter("codes")
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
