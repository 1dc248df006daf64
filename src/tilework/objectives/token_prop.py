"""TokenProp: the tokens of the stem must still tell what the input was (Good tokenizers, eqs. 6 and 7).

An auxiliary objective, of weight 0.001 in the paper; `extra` of any recipe takes it. Images are compared at the size of
the decoder, as the model sees them; code maps on their own grid. The paper does not say whether its L2 is a sum or a
mean over an image. By the mean, 0.001 would give the stem a ten-thousandth of the task's gradient, and a weight of 1
would not end in NaN (table 8): so the sum is our reading.

B batch | C input channels | H, W input grid | D stem width | h, w token grid | s decoded side
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.batch import Batch
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.layers.pixel_decoder import PixelDecoder, resized
from tilework.models import Output
from tilework.models.model import stem_of
from tilework.objectives.objective import Objective, ObjectiveConfig
from tilework.objectives.perceptual import MEAN, SPREAD, Perceptual
from tilework.objectives.task import Task

Kind = Literal["l1", "l2", "perceptual", "contextual"]
BANDWIDTH = 0.5  # of the contextual loss
STAGE = 3  # of VGG, whose features it compares


@ObjectiveConfig.choices.add("token_prop")
@dataclass(frozen=True)
class TokenPropConfig(ObjectiveConfig):
    """Settings of TokenProp."""

    task: ClassVar[Task] = Task(labels=False, metric="mse", higher_is_better=False)
    kind: Kind = "l2"
    size: int = 64  # of what is decoded, in pixels: 64, 128 or 256
    wide: float = 1.0  # channels of the decoder, by this factor; sixteenths are possible
    residual: bool = False  # convolutions of the decoder as residual blocks
    reduce: Literal["sum", "mean"] = "sum"  # over the values of an image, for l1 and l2
    perceptual_weights: str = ""  # file of a VGG-16, as safetensors, for the last two kinds

    def build(self, model: nn.Module, codebook: Codebook | None = None) -> TokenProp:
        """The decoder beside a model. codebook: of token stores; None for pixels."""
        if self.kind not in ("l1", "l2", "perceptual", "contextual"):
            raise ConfigError(f"TokenProp has no loss '{self.kind}'", "give l1, l2, perceptual or contextual")
        if self.reduce not in ("sum", "mean"):
            raise ConfigError(f"TokenProp cannot reduce by '{self.reduce}'", "give sum or mean")
        seen = self.kind in ("perceptual", "contextual")
        if seen and codebook is not None:
            raise ConfigError(f"a {self.kind} loss compares images, not codes", "set kind to 'l2' or 'l1'")
        if seen and not self.perceptual_weights:
            raise ConfigError(f"a {self.kind} loss needs a network", "give its file as perceptual_weights")
        return TokenProp(model, self, 3 if codebook is None else codebook.code_dim)


class TokenProp(Objective):
    """Distance of the input from what a light decoder makes of the stem's tokens."""

    def __init__(self, model: nn.Module, config: TokenPropConfig, channels: int) -> None:
        super().__init__()
        self.model, self.kind = model, config.kind
        self.size, self.reduce = config.size, config.reduce
        self.decoder = PixelDecoder(stem_of(model).width, channels, config.size, config.wide, config.residual)
        self.perceptual = Perceptual.load(config.perceptual_weights) if config.perceptual_weights else None

    def losses(self, out: Output, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """The mean over the batch; the input is mixed already where mixing comes before the stem.

        ratio: of this loss's gradient at the stem to that of all others.
        """
        stem, ratio = gradient_ratio(out.stem)
        return {"loss": self._distance(*self.compared(stem, batch.x)).mean(), "ratio": ratio}

    def compared(self, stem: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Decoded and wanted, (B, C, s, s), or of the input's size if that is smaller. stem: (B, D, h, w)."""
        grid = (min(self.size, x.shape[2]), min(self.size, x.shape[3]))
        return resized(self.decoder(stem), grid), resized(x, grid)

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Squared error of each sample."""
        decoded, wanted = self.compared(model(batch.x).stem, batch.x)
        return {"mse": (decoded - wanted).square().mean((1, 2, 3))}

    def _distance(self, decoded: Tensor, wanted: Tensor) -> Tensor:
        if self.kind in ("l1", "l2"):
            apart = decoded - wanted
            each = (apart.abs() if self.kind == "l1" else apart.square()).flatten(1)  # (B, C s s)
            return each.sum(1) if self.reduce == "sum" else each.mean(1)
        assert self.perceptual is not None
        mean, spread = (torch.tensor(v, device=wanted.device).view(3, 1, 1) for v in (MEAN, SPREAD))
        images = [x * spread + mean for x in (decoded, wanted)]  # as bytes were before 'normalise'
        if self.kind == "perceptual":
            return self.perceptual(*images)
        return contextual_loss(*(self.perceptual.features(x)[STAGE].flatten(2) for x in images))


def gradient_ratio(x: Tensor) -> tuple[Tensor, Tensor]:
    """A branch of a tensor, and a scalar that the backward pass fills in: |gradient by the branch| / |by the rest|.

    It costs two norms and no pass of its own, and stays on the device. 0 where nothing else, or no gradient, reaches x.
    """
    ratio, branch = torch.zeros((), device=x.device), x.view_as(x)
    if not branch.requires_grad:
        return branch, ratio
    own: list[Tensor] = []

    def fill(whole: Tensor) -> None:
        if own:  # else the branch had no gradient
            by_branch = own.pop()
            rest = (whole.float() - by_branch).norm()
            ratio.copy_(torch.where(rest > 0, by_branch.norm() / rest, 0))

    branch.register_hook(lambda gradient: own.append(gradient.detach().float()))
    x.register_hook(fill)
    return branch, ratio


def contextual_loss(x: Tensor, y: Tensor) -> Tensor:
    """-log of the mean, over wanted features, of the best match among the given ones (Mechrez et al., 2018).

    x, y: (B, D, P) features of P positions; returns (B,).
    """
    centre = y.mean(2, keepdim=True)
    x, y = (F.normalize(z - centre, dim=1) for z in (x, y))
    distance = 1 - x.transpose(1, 2) @ y  # (B, P of x, P of y)
    relative = distance / (distance.amin(2, keepdim=True) + 1e-5)
    weight = ((1 - relative) / BANDWIDTH).softmax(2)
    return -weight.amax(1).mean(1).clamp(min=1e-8).log()
