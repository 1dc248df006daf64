"""MLP-Mixer for pixels and for tokens: positions and channels mixed in turn by MLPs (Tolstikhin et al., 2021).

B batch | h, w token grid | N = h w | D width | S sources. Parameter names are timm's, so its checkpoints load.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from tilework.core.batch import Mix
from tilework.core.bounds import check_below_one
from tilework.core.errors import ConfigError
from tilework.layers.block import Mlp
from tilework.layers.residual import add_branch
from tilework.layers.stems import PatchStemConfig, Stem, StemConfig, TokenStemConfig
from tilework.models.model import Model, ModelConfig, Output, Visible, initial_share, stage_blocks


@ModelConfig.choices.add("mlp_mixer")
@dataclass(frozen=True)
class MlpMixerConfig(ModelConfig):
    """Settings of an MLP-Mixer."""

    width: int = 512
    depth: int = 8
    token_hidden: int = 256  # of the MLP over positions
    channel_hidden: int = 2048  # of the MLP over channels
    drop_path: float = 0.0  # of the last block; rises linearly from zero
    stem: StemConfig = field(default_factory=PatchStemConfig)

    def __post_init__(self) -> None:
        check_below_one(self, "drop_path")

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> MlpMixer:
        """The network for an input of `channels` on `grid`; no other grid fits it."""
        return MlpMixer(self, self.stem.build(channels, grid, self.width), classes)

    def for_tokens(self) -> MlpMixerConfig:
        """The same network with SeiT's Stem-Adapter."""
        return replace(self, stem=TokenStemConfig())


class MixerBlock(nn.Module):
    """An MLP over positions, then one over channels.

    How much a position takes from another is the size of the weights between, |W2| |W1| (ours: TL-Align names no way).
    """

    def __init__(self, config: MlpMixerConfig, places: int, drop_path: float) -> None:
        super().__init__()
        self.drop_path = drop_path
        self.norm1 = nn.LayerNorm(config.width, eps=1e-6)
        self.mlp_tokens = Mlp(places, config.token_hidden)
        self.norm2 = nn.LayerNorm(config.width, eps=1e-6)
        self.mlp_channels = Mlp(config.width, config.channel_hidden)

    def forward(self, x: Tensor, share: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """x: (B, N, D); share: (B, N, S) or None."""
        drop = self.drop_path if self.training else 0.0
        y = self.mlp_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        x, share = add_branch(x, y, drop, share, None if share is None else self._mix(share))
        return add_branch(x, self.mlp_channels(self.norm2(x)), drop, share)

    def _mix(self, share: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast(share.device.type, enabled=False):
            matrix = self.mlp_tokens.fc2.weight.float().abs() @ self.mlp_tokens.fc1.weight.float().abs()  # (N, N)
            return matrix / matrix.sum(1, keepdim=True) @ share


class MlpMixer(Model):
    """Blocks without attention; the head reads the mean of the tokens."""

    stem_names = ("stem.",)
    head_names = ("head.",)

    def __init__(self, config: MlpMixerConfig, stem: Stem, classes: int) -> None:
        super().__init__()
        self.config = config
        self.takes = stem.takes
        self.grid = stem.grid
        self.stage_widths, self.stage_strides = (config.width,) * 4, (stem.stride,) * 4
        self.stem = stem
        self.blocks = nn.ModuleList(
            MixerBlock(config, stem.grid[0] * stem.grid[1], config.drop_path * i / max(1, config.depth - 1))
            for i in range(config.depth)
        )
        self.norm = nn.LayerNorm(config.width, eps=1e-6)
        self.head = nn.Linear(config.width, classes) if classes else nn.Identity()
        self._initialise()

    def _initialise(self) -> None:
        for module in self.blocks.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        if isinstance(self.head, nn.Linear):
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def _forward(self, x: Tensor, mix: Mix | None, visible: Visible | None, track: bool, stages: bool) -> Output:
        """See `Model.forward`; no token can be left out, and no other grid fits.

        Stages are the tokens after each quarter of the blocks.
        """
        if visible is not None:
            raise ConfigError("an MLP-Mixer cannot leave tokens out", "it has weights for each position: use a ViT")
        if (grid := self.stem.token_grid(x)) != self.grid:
            raise ConfigError(
                f"an MLP-Mixer has weights for each position of {self.grid[0]}x{self.grid[1]}, not {grid[0]}x{grid[1]}",
                "build it for that size, or use a ViT",
            )
        stem = self.stem(x)  # (B, D, h, w)
        mixed = mix.apply(stem) if mix is not None and mix.after_stem else stem
        tokens = mixed.flatten(2).transpose(1, 2)  # (B, N, D)
        share = initial_share(mix, len(x), self.grid, x.device) if track else None  # (B, N, 2)
        maps: list[Tensor] = []
        for i, block in enumerate(self.blocks):
            tokens, share = block(tokens, share)
            if stages:
                maps += [tokens.transpose(1, 2).unflatten(2, grid)] * stage_blocks(self.config.depth).count(i)
        tokens = self.norm(tokens)
        share = None if share is None else share.mean(1)
        return Output(self.head(tokens.mean(1)), tokens, stem, grid, share=share, stages=tuple(maps))

    def token_logits(self, out: Output) -> Tensor:
        """What the head says of each position, (B, N, K); their mean is what it says of the image."""
        return self.head(out.tokens)

    def layer_of(self, name: str) -> int:
        """0: stem; i + 1: block i; last: norm and head."""
        if name.startswith(self.stem_names):
            return 0
        return int(name.split(".")[1]) + 1 if name.startswith("blocks.") else self.config.depth + 1

    @property
    def layers(self) -> int:
        """Stem, blocks, head."""
        return self.config.depth + 2
