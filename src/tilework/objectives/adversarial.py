"""Adversarial loss of tokenizer training: a discriminator of patches, hinge losses, an adaptive weight.

VQGAN (Esser et al., 2021), eqs. 5 to 7; PatchGAN (Isola et al., 2017). The loop has one loss and one optimiser: the
discriminator learns from images and detached reconstructions, the tokenizer from the discriminator with detached
weights, so that the sum of both losses gives each part the gradient of its own. Clipping counts both.

B batch | H, W pixels | D width
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F


@dataclass(frozen=True)
class AdversarialConfig:
    """Settings of the adversarial loss."""

    weight: float = 0.8  # of the tokenizer's loss, beside the adaptive one
    start: int = 0  # step from which on both parts have a loss
    width: int = 64  # channels of the first layer
    layers: int = 3  # that halve the sides
    most: float = 1e4  # largest adaptive weight

    def __post_init__(self) -> None:
        if self.weight <= 0 or self.start < 0 or self.width < 1 or self.layers < 1 or self.most <= 0:
            raise ValueError("weight, width, layers and most must be positive, and start not negative")


class PatchDiscriminator(nn.Module):
    """Whether each patch is of an image or of a reconstruction; normalised over the batch at hand, always."""

    def __init__(self, width: int = 64, layers: int = 3) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.Conv2d(3, width, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
        below = width
        for layer in range(1, layers + 1):
            above, stride = width * min(2**layer, 8), 2 if layer < layers else 1
            parts += [
                nn.Conv2d(below, above, 4, stride=stride, padding=1, bias=False),
                nn.BatchNorm2d(above, track_running_stats=False),
                nn.LeakyReLU(0.2),
            ]
            below = above
        self.layers = nn.Sequential(*parts, nn.Conv2d(below, 1, 4, padding=1))
        for part in self.layers:
            if isinstance(part, nn.Conv2d):
                nn.init.normal_(part.weight, 0, 0.02)
            elif isinstance(part, nn.BatchNorm2d):
                nn.init.normal_(part.weight, 1, 0.02)

    def forward(self, pixels: Tensor) -> Tensor:
        """pixels: (B, 3, H, W) in [0, 1]; returns (B, 1, ., .), above zero for images."""
        patches: Tensor = self.layers(2 * pixels - 1)
        return patches


def hinge_losses(real: Tensor, fake: Tensor) -> Tensor:
    """The discriminator's loss: images above 1, reconstructions below -1."""
    return (F.relu(1 - real).mean() + F.relu(1 + fake).mean()) / 2


def adaptive_weight(reconstruction: Tensor, adversarial: Tensor, last: Tensor, most: float) -> Tensor:
    """Eq. 7: how much weaker the adversarial gradient is at the decoder's last layer; no gradient flows through it."""
    wanted, found = (
        torch.autograd.grad(loss, last, retain_graph=True)[0].float().norm() for loss in (reconstruction, adversarial)
    )
    return (wanted / (found + 1e-4)).clamp(0, most)


class Adversarial(nn.Module):
    """The discriminator and the losses of both parts."""

    def __init__(self, config: AdversarialConfig) -> None:
        super().__init__()
        self.config = config
        self.discriminator = PatchDiscriminator(config.width, config.layers)

    def forward(
        self, restored: Tensor, pixels: Tensor, reconstruction: Tensor, last: Tensor, step: int
    ) -> dict[str, Tensor]:
        """`loss` to add to the reconstruction's, a scalar; last: weight of the decoder's last layer."""
        if step < self.config.start:
            idle = sum((parameter.sum() for parameter in self.parameters()), torch.zeros((), device=pixels.device))
            return {"loss": 0 * idle}  # every process has a gradient for everything
        frozen = {name: value.detach() for name, value in self.discriminator.named_parameters()}
        fooled = -functional_call(self.discriminator, frozen, (restored,)).mean()
        weight = self.config.weight * adaptive_weight(reconstruction, fooled, last, self.config.most)
        told = hinge_losses(self.discriminator(pixels), self.discriminator(restored.detach()))
        return {
            "loss": weight * fooled + told,
            "fooled": fooled.detach(),
            "discriminator": told.detach(),
            "adversarial_weight": weight,
        }
