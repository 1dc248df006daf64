"""What every network takes and gives.

B batch | D width | h, w token grid | N = h w | S sources | K classes
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import UnionType
from typing import ClassVar

import torch
from torch import Tensor, nn

from tilework.core.batch import Mix, Stage
from tilework.core.errors import ConfigError
from tilework.core.registry import Registry
from tilework.layers.stems import Stem

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


@dataclass(frozen=True)
class Detections:
    """Objects found on a batch, at most n on each image, the surest first; a score of 0: there is none."""

    boxes: Tensor  # (B, n, 4) edges in positions of the input
    scores: Tensor  # (B, n)
    labels: Tensor  # (B, n)
    masks: Tensor | None = None  # (B, n, s, s) probability of every cell of the box


@dataclass(frozen=True)
class Visible:
    """The tokens that a network is given; all others are left out (masked token modelling)."""

    positions: Tensor  # (B, n) on the token grid
    shown: int | None = None  # the others of them enter as `mask`; None: all are shown
    mask: Tensor | None = None  # (D,)

    def pick(self, x: Tensor) -> Tensor:
        """Rows of those tokens, of masked ones too. x: (B, N, D); returns (B, n, D)."""
        return x.gather(1, self.positions[..., None].expand(-1, -1, x.shape[2]))

    def place(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Tokens of a stem, or the mask, at their positions. tokens: (B, N, D); positions: (1, N, D); (B, n, D)."""
        x, where = self.pick(tokens), self.pick(positions.expand(len(tokens), -1, -1))
        if self.mask is not None:
            masked = self.mask.to(x.dtype).expand(*x[:, self.shown :].shape)
            x = torch.cat([x[:, : self.shown], masked], 1)
        return x + where


@dataclass(frozen=True)
class Output:
    """What a network says of a batch."""

    logits: Tensor  # (B, K); of every position, (B, K, h, w), where the head is dense
    tokens: Tensor  # (B, N, D) after the last block; visible ones only where `visible` was given
    stem: Tensor  # (B, D, h, w) as the stem gave it; of other width and grid where the blocks change them
    grid: tuple[int, int]  # h, w
    dense: Tensor | None = None  # (B, N, K) logits of each token
    share: Tensor | None = None  # (B, S) part of each source in the representation that the head reads
    stages: tuple[Tensor, ...] = ()  # (B, D_i, h_i, w_i) fine to coarse, where asked for: what dense heads read
    class_token: Tensor | None = None  # (B, D) after the last block, where the head reads it and not the mean of tokens
    offsets: Tensor | None = None  # (B, A, 4) of boxes from anchors, where the head finds objects; logits are (B, A, K)
    found: Detections | None = None  # objects, where they were asked for


class Network(nn.Module):
    """Whatever a run trains: a classifier, a tokenizer, a TokenAdapt."""

    takes: Stage  # what its input is


class Model(Network):
    """Stem, backbone and heads."""

    grid: tuple[int, int]  # that it is built for; `Output.grid` is that of the input at hand
    stage_widths: tuple[int, ...] = ()  # D_i of `Output.stages`
    stage_strides: tuple[float, ...] = ()  # pixels, or codes, from position to position; 0.5: two positions for each
    stages_want_norm: bool = False  # whether dense heads put a norm after each stage
    tracks: bool = True  # whether it can follow the sources of a mixture
    stem_names: tuple[str, ...] = ()  # how the names of the stem's parameters start
    head_names: tuple[str, ...] = ()  # and those of the head
    prefix: str = ""  # before the names that published checkpoints use

    def forward(
        self,
        x: Tensor,
        *,
        mix: Mix | None = None,
        visible: Visible | None = None,
        track: bool = False,
        stages: bool = False,
    ) -> Output:
        """Classify; an input on another grid than the one built for is taken, or refused with the reason.

        mix: how the samples are mixed; the tokens are mixed here if `mix.after_stem`.
        visible: the tokens that enter the blocks; all others are left out (masked token modelling).
        track: follow the sources of a mixture through the blocks (TL-Align).
        stages: give the maps of all stages as well.
        """
        return self._forward(x, mix, visible, track, stages)

    def _forward(self, x: Tensor, mix: Mix | None, visible: Visible | None, track: bool, stages: bool) -> Output:
        """What `forward` returns."""
        raise NotImplementedError

    def token_logits(self, out: Output) -> Tensor:
        """Class logits of every token, (B, N, K): the head as a map over positions."""
        if out.dense is None:
            raise ConfigError(
                f"a {type(self).__name__} does not classify positions", "choose a network with a spatial map"
            )
        return out.dense

    @property
    def position_grids(self) -> dict[str, tuple[int, int]]:
        """Grids of the position embeddings, by name: so that they can be resized."""
        return {"pos_embed": self.grid}

    def translate(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of a published checkpoint by our names, without those that the network computes."""
        return dict(tensors)

    def layer_of(self, name: str) -> int:
        """Depth of a parameter, 0 for the stem: for learning rates that fall with depth."""
        raise NotImplementedError

    @property
    def layers(self) -> int:
        """Number of depths that `layer_of` tells apart."""
        raise NotImplementedError


@dataclass(frozen=True)
class ModelConfig:
    """Settings of a network; the name picks it."""

    choices: ClassVar[Registry[type[ModelConfig]]] = Registry("model")

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> Network:
        """The network for an input of `channels` on `grid`."""
        raise NotImplementedError

    def for_tokens(self) -> ModelConfig:
        """The same network with its stem for code maps."""
        name = self.choices.name_of(type(self))
        raise ConfigError(f"{name} has no stem for tokens", "pick a model that has one, such as vit or resnet")


def stage_blocks(depth: int) -> tuple[int, ...]:
    """Blocks after which a network without stages gives its four maps: each quarter, rounded up."""
    return tuple(-(-depth * quarter // 4) - 1 for quarter in (1, 2, 3, 4))


def halved(grid: tuple[int, int]) -> tuple[int, int]:
    """The grid of the next stage."""
    if grid[0] % 2 or grid[1] % 2:
        raise ConfigError(f"a map of {grid[0]}x{grid[1]} cannot be halved", "change the size")
    return grid[0] // 2, grid[1] // 2


def stem_of(model: nn.Module) -> Stem:
    """The outermost stem of a network."""
    for module in model.modules():
        if isinstance(module, Stem):
            return module
    raise ConfigError(f"a {type(model).__name__} has no stem of its own", "choose a network whose stem is a setting")


def repeated_blocks(network: nn.Module) -> list[nn.Module]:
    """The blocks that a network is a row of, outermost ones: units for sharding and for activation checkpointing.

    Members of lists and sequences that have a forward pass of their own and at least two layers with parameters.
    """
    found: list[nn.Module] = []
    for child in network.children():
        listed = isinstance(network, nn.ModuleList | nn.Sequential) and not isinstance(child, CONTAINERS)
        layers = [one for one in child.modules() if next(one.parameters(recurse=False), None) is not None]
        if listed and len(layers) > 1:
            found.append(child)
        else:
            found += repeated_blocks(child)
    return found


def initial_share(mix: Mix | None, batch: int, grid: tuple[int, int], device: torch.device) -> Tensor:
    """Sources of each patch token before the first block. Returns (B, N, 2): the sample itself, its partner."""
    own = torch.ones(batch, grid[0] * grid[1], device=device) if mix is None else mix.at(*grid).flatten(1).float()
    return torch.stack([own, 1 - own], -1)


def start_small(model: nn.Module, kind: type[nn.Module] | UnionType = nn.Linear) -> None:
    """Layers of a kind as transformers start them: weights from a narrow normal, biases at zero."""
    for module in model.modules():
        if isinstance(module, kind):
            nn.init.trunc_normal_(module.get_parameter("weight"), std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.get_parameter("bias"))
