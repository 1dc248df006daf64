"""A plain convolutional autoencoder around finite scalar quantisation (FSQ; layout of FSQ-pytorch).

Parameter names are those of that repository's checkpoints, which hold no codebook. Images go in normalised as
ImageNet's. Shapes say how many channels are rounded, not to how many levels: with 3, 4 or 6 channels the levels are
those that the paper recommends, with any other number they must be given. Loading such checkpoints was never tried on
real weights: none were at hand.

B batch | H, W pixels | h, w code grid | D width | C channels of a code
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tilework.models.model import ModelConfig
from tilework.tokenizers.fsq import FsqQuantiser
from tilework.tokenizers.shapes import Shapes
from tilework.tokenizers.tokenizer import Tokenizer

LEVELS = {3: (8, 6, 5), 4: (8, 5, 5, 5), 6: (8, 8, 8, 5, 5, 5)}  # table 1; two rows have five channels
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@ModelConfig.choices.add("fsq_vae")
@dataclass(frozen=True)
class FsqVaeConfig(ModelConfig):
    """Settings of the FSQ autoencoder."""

    width: int = 512
    levels: tuple[int, ...] = (8, 5, 5, 5)  # of each channel of a code

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> FsqVae:
        """The tokenizer; images may have any size that is a multiple of 8."""
        return FsqVae(self)


class FsqVae(Tokenizer):
    """Three halvings, rounded channels, three doublings."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, config: FsqVaeConfig) -> None:
        super().__init__()
        self.config, self.patch = config, 8
        self.quantiser = FsqQuantiser(config.levels)
        self.enc, self.dec = Encoder(config), Decoder(config)
        for name, values in (("mean", MEAN), ("deviation", DEVIATION)):
            self.register_buffer(name, torch.tensor(values)[:, None, None], persistent=False)

    def features(self, pixels: Tensor) -> Tensor:
        """pixels: (B, 3, H, W) in [0, 1]; returns (B, h, w, C)."""
        return self.enc((pixels - self.mean) / self.deviation).permute(0, 2, 3, 1)

    def pixels(self, vectors: Tensor) -> Tensor:
        """vectors: (B, h, w, C); returns (B, 3, H, W)."""
        return self.dec(vectors.permute(0, 3, 1, 2)) * self.deviation + self.mean


class Encoder(nn.Module):
    """Pixels to the channels of a code."""

    def __init__(self, config: FsqVaeConfig) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inner in (3, config.width, config.width):
            layers += [nn.Conv2d(inner, config.width, 4, stride=2, padding=1), nn.ReLU()]
        self.blocks = nn.Sequential(*layers, nn.Conv2d(config.width, len(config.levels), 1))

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, 3, H, W); returns (B, C, h, w)."""
        return self.blocks(x)


class Decoder(nn.Module):
    """Rounded channels to pixels."""

    def __init__(self, config: FsqVaeConfig) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inner in (len(config.levels), config.width, config.width):
            layers += [nn.ConvTranspose2d(inner, config.width, 4, stride=2, padding=1), nn.ReLU()]
        self.blocks = nn.Sequential(*layers, nn.Conv2d(config.width, 3, 1))

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, C, h, w); returns (B, 3, H, W)."""
        return self.blocks(x)


def config_of(keys: Shapes) -> FsqVaeConfig:
    """The settings that a checkpoint's shapes imply. keys: name to shape."""
    width, channels = keys["enc.blocks.0.weight"][0], keys["enc.blocks.6.weight"][0]
    return FsqVaeConfig(width, LEVELS.get(channels, ()))
