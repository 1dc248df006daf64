"""The plain VQ-VAE: a few convolutions around a codebook (van den Oord et al., 2017).

Parameter names are those of a public checkpoint (512 codes of 128 dims, patches of 4 px). As there, images go in as
x - 0.5, and the shortcut of a residual block takes relu(x), because the first ReLU works in place.

B batch | H, W pixels | h, w code grid | D width | C code dim | K codes
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.models.model import ModelConfig
from tilework.tokenizers.quantise import NearestQuantiser
from tilework.tokenizers.tokenizer import Tokenizer


@ModelConfig.choices.add("vq_vae")
@dataclass(frozen=True)
class VqVaeConfig(ModelConfig):
    """Settings of the plain VQ-VAE."""

    width: int = 128
    blocks: int = 2
    hidden: int = 64  # channels inside a residual block
    codes: int = 512
    code_dim: int = 128

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> VqVae:
        """The tokenizer; images may have any size that is a multiple of 4."""
        return VqVae(self)


class VqVae(Tokenizer):
    """Two halvings, residual blocks, codes by distance; and the way back."""

    def __init__(self, config: VqVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.patch = 4
        self.encoder = Encoder(config)
        self.pre_vq_conv = nn.Conv2d(config.width, config.code_dim, 1)
        self.quantiser = NearestQuantiser(config.codes, config.code_dim)
        self.decoder = Decoder(config)

    @property
    def last_layer(self) -> Tensor:
        """Of the decoder."""
        return self.decoder.get_parameter("_blocks.conv_t_2.weight")

    def features(self, pixels: Tensor) -> Tensor:
        """pixels: (B, 3, H, W) in [0, 1]; returns (B, h, w, C)."""
        return self.pre_vq_conv(self.encoder(pixels - 0.5)).permute(0, 2, 3, 1)

    def pixels(self, vectors: Tensor) -> Tensor:
        """vectors: (B, h, w, C); returns (B, 3, H, W)."""
        return self.decoder(vectors.permute(0, 3, 1, 2)) + 0.5


class Residual(nn.Module):
    """Two convolutions without bias; the shortcut takes relu(x)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        first = nn.Conv2d(width, hidden, 3, padding=1, bias=False)
        second = nn.Conv2d(hidden, width, 1, bias=False)
        self._block = nn.Sequential(OrderedDict(conv_1=first, relu=nn.ReLU(), conv_2=second))

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, D, h, w)."""
        x = F.relu(x)
        return x + self._block(x)


class Stack(nn.Module):
    """Residual blocks and a last ReLU."""

    def __init__(self, config: VqVaeConfig) -> None:
        super().__init__()
        blocks = {f"residual_{i}": Residual(config.width, config.hidden) for i in range(config.blocks)}
        self.residual_blocks = nn.Sequential(OrderedDict(blocks))

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, D, h, w)."""
        return F.relu(self.residual_blocks(x))


class Encoder(nn.Module):
    """Pixels to features."""

    def __init__(self, config: VqVaeConfig) -> None:
        super().__init__()
        width = config.width
        self._blocks = nn.Sequential(
            OrderedDict(
                conv_1=nn.Conv2d(3, width // 2, 4, stride=2, padding=1),
                relu_1=nn.ReLU(),
                conv_2=nn.Conv2d(width // 2, width, 4, stride=2, padding=1),
                relu_2=nn.ReLU(),
                conv_3=nn.Conv2d(width, width, 3, padding=1),
                residual=Stack(config),
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, 3, H, W) in [-0.5, 0.5]; returns (B, D, h, w)."""
        return self._blocks(x)


class Decoder(nn.Module):
    """Code vectors to pixels."""

    def __init__(self, config: VqVaeConfig) -> None:
        super().__init__()
        width = config.width
        self._blocks = nn.Sequential(
            OrderedDict(
                conv_1=nn.Conv2d(config.code_dim, width, 3, padding=1),
                residual=Stack(config),
                conv_t_1=nn.ConvTranspose2d(width, width // 2, 4, stride=2, padding=1),
                relu=nn.ReLU(),
                conv_t_2=nn.ConvTranspose2d(width // 2, 3, 4, stride=2, padding=1),
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, C, h, w); returns (B, 3, H, W), about [-0.5, 0.5]."""
        return self._blocks(x)


def config_of(keys: dict[str, torch.Size]) -> VqVaeConfig:
    """The settings that a checkpoint's shapes imply. keys: name to shape."""
    inside = [name for name in keys if name.startswith("encoder._blocks.residual.residual_blocks.")]
    codes, code_dim = keys["quantiser.embedding.weight"]
    return VqVaeConfig(
        width=keys["encoder._blocks.conv_3.weight"][0],
        blocks=len(inside) // 2,
        hidden=keys[inside[0]][0],
        codes=codes,
        code_dim=code_dim,
    )
