"""A frozen network as a teacher: one of its feature maps, of images in [0, 1].

B batch | H, W pixels | D channels of the map | h, w its grid
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tilework.core.errors import ConfigError
from tilework.models.efficientnet_lite import LAST, EfficientnetLite0
from tilework.models.model import Model, ModelConfig

Channels = tuple[float, float, float]


class Teacher(nn.Module):
    """The map of a stage, or of the last tokens. Never trained; what comes after the map is left out where it can be.

    stage: of `Output.stages`, fine to coarse; None: the last tokens on their grid.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: Model, stage: int | None, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.network, self.stage = network, stage
        if isinstance(network, EfficientnetLite0) and stage is not None:
            network.conv_head = network.bn1 = network.fc = nn.Identity()  # type: ignore[assignment]
            network.blocks = nn.Sequential(*list(network.blocks)[: LAST[stage] + 1])
        for name, value in (("mean", mean), ("std", std)):
            self.register_buffer(name, value[:, None, None], persistent=False)
        self.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Teacher:
        """Batch statistics and dropout stay off."""
        return super().train(False)

    def forward(self, pixels: Tensor) -> Tensor:
        """pixels: (B, 3, H, W) in [0, 1]; returns (B, D, h, w)."""
        out = self.network((pixels - self.mean) / self.std, stages=self.stage is not None)
        if self.stage is not None:
            return out.stages[self.stage]
        if out.tokens.shape[1] != out.grid[0] * out.grid[1]:
            raise ConfigError(f"a {type(self.network).__name__} has no spatial map", "choose another teacher")
        return out.tokens.transpose(1, 2).unflatten(2, out.grid)


def build_teacher(
    config: ModelConfig, stage: int | None, size: tuple[int, int], mean: Channels, std: Channels
) -> Teacher:
    """A teacher with fresh weights, refused where the network has no such map. mean, std: of pixels in [0, 1]."""
    network = config.build(3, size, 0)
    if not isinstance(network, Model) or network.takes != "pixels":
        name = ModelConfig.choices.name_of(type(config))
        raise ConfigError(f"'{name}' gives no spatial map of images", "choose a network for pixels as the teacher")
    if stage is not None and not -len(network.stage_widths) <= stage < len(network.stage_widths):
        what = f"a {type(network).__name__} has {len(network.stage_widths)} stages, and stage {stage} is asked for"
        raise ConfigError(what, "set stage=null for the map of its last tokens, or one that it has")
    number = None if stage is None else stage % len(network.stage_widths)
    return Teacher(network, number, torch.tensor(mean), torch.tensor(std))
