"""TokenAdapt as a model that is trained by itself (SeiT++, eq. 3)."""

from __future__ import annotations

from dataclasses import dataclass

from tilework.core.batch import Stage
from tilework.layers.token_adapt import TokenAdaptNetwork
from tilework.models.model import ModelConfig, Network


class TokenAdaptModel(TokenAdaptNetwork, Network):
    """The network; it learns from images, which its objective turns into codes."""

    takes: Stage = "pixels"


@ModelConfig.choices.add("token_adapt")
@dataclass(frozen=True)
class TokenAdaptModelConfig(ModelConfig):
    """Settings of TokenAdapt; 3.7 million parameters at 32 dimensions."""

    code_dim: int = 32
    width: int = 384
    heads: int = 6
    codes: int = 0  # the published network, which ends in logits of that many; 0: for any cut of the codebook

    def __post_init__(self) -> None:
        if self.codes < 0:
            raise ValueError(f"codes is {self.codes} but must not be negative")

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> TokenAdaptModel:
        """The network, whatever the images."""
        return TokenAdaptModel(self.code_dim, self.width, self.heads, self.codes)
