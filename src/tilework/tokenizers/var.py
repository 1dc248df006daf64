"""VAR's tokenizer: a VQGAN whose codes are ten maps from 1x1 to 16x16, one after another (Tian et al., 2024).

The 680 codes of an image are stored as a sequence: a code of a coarse map stands for much of the image, so they have no
positions on one grid. Parameter names are those of a VQGAN; the published attention keeps its three projections in one
tensor, which is split on the way in. What shapes do not say, the scales, is what was published for 256 px. Images go
in as [-1, 1]. Loading such checkpoints was never tried on real weights: none were at hand.

B batch | H, W pixels | h, w finest map | C code dim | K codes | T codes of an image
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from tilework.core.errors import ConfigError
from tilework.models.model import ModelConfig
from tilework.tokenizers.pyramid import PyramidQuantiser
from tilework.tokenizers.shapes import Shapes, count_of, renamed
from tilework.tokenizers.tokenizer import Tokenizer
from tilework.tokenizers.vqgan import Decoder, Encoder, VqganConfig, check_widths
from tilework.tokenizers.vqgan import config_of as vqgan_config_of


@ModelConfig.choices.add("var")
@dataclass(frozen=True)
class VarConfig(ModelConfig):
    """Settings of VAR's tokenizer; the defaults are those of the published one."""

    width: int = 160  # channels at full resolution
    multiples: tuple[int, ...] = (1, 1, 2, 2, 4)  # of the width at each level; all but the last halve the sides
    blocks: int = 2  # residual blocks at each level
    attention: tuple[int, ...] = (4,)  # levels with attention after each block
    codes: int = 4096
    code_dim: int = 32
    kernel: int = 3  # of the convolutions on both sides of the quantiser
    convolutions: int = 4  # that the scales share
    scales: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16)

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> Var:
        """The tokenizer, for square images of one size."""
        return Var(self)


class Var(Tokenizer):
    """Encoder, quantiser from coarse to fine, decoder."""

    quantiser: PyramidQuantiser

    def __init__(self, config: VarConfig) -> None:
        super().__init__()
        check_widths(config.width, config.multiples)
        if config.kernel % 2 == 0:
            raise ConfigError(f"a kernel of {config.kernel}", "an odd one is needed")
        self.config = config
        self.patch = 2 ** (len(config.multiples) - 1)
        network = VqganConfig(config.width, config.multiples, config.blocks, config.attention, latent=config.code_dim)
        self.encoder = Encoder(network)
        self.decoder = Decoder(network)
        self.quantiser = PyramidQuantiser(config.codes, config.code_dim, config.scales, config.convolutions)
        dim, kernel = config.code_dim, config.kernel
        self.quant_conv, self.post_quant_conv = (nn.Conv2d(dim, dim, kernel, padding=kernel // 2) for _ in range(2))
        edge = self.patch * config.scales[-1]
        self.size, self.length = (edge, edge), self.quantiser.length
        self.sequence = f"square maps of {', '.join(map(str, config.scales))} codes a side, row by row"

    def features(self, pixels: Tensor) -> Tensor:
        """pixels: (B, 3, H, W) in [0, 1]; returns (B, h, w, C), which all scales share."""
        return self.quant_conv(self.encoder(2 * pixels - 1)).permute(0, 2, 3, 1)

    def pixels(self, vectors: Tensor) -> Tensor:
        """vectors: (B, T, C); returns (B, 3, H, W)."""
        return (self.decoder(self.post_quant_conv(self.quantiser.sum(vectors).permute(0, 3, 1, 2))) + 1) / 2


def var_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Published tensors by our names: attention split in three, without the counts of used codes."""
    starts = {"quantize.quant_resi.qresi_ls.": "quantiser.convolutions.", "quantize.": "quantiser."}
    found: dict[str, Tensor] = {}
    for name, tensor in renamed(tensors, starts, drop=("quantize.ema_vocab_hit_SV",)).items():
        if ".qkv." in name and tensor.ndim and len(tensor) % 3 == 0:
            for part, third in zip("qkv", tensor.chunk(3), strict=True):
                found[name.replace(".qkv.", f".{part}.")] = third
        else:
            found[name] = tensor
    return found


def config_of(keys: Shapes) -> VarConfig:
    """The settings that a checkpoint's shapes imply; the scales are those published for 256 px. keys: name to shape."""
    network = vqgan_config_of(keys)
    return VarConfig(
        width=network.width,
        multiples=network.multiples,
        blocks=network.blocks,
        attention=network.attention,
        codes=network.codes,
        code_dim=network.code_dim,
        kernel=keys["quant_conv.weight"][-1],
        convolutions=count_of(keys, "quantiser.convolutions.{}.weight"),
    )
