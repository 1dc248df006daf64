"""Swin Transformer for pixels and for tokens: attention in shifted windows, in four stages (Liu et al., 2021).

B batch | h, w grid of a stage | N = h w | D width of a stage | S sources | k heads | M windows | n in a window |
H, W grid padded to whole windows, P = H W.
Parameter names are those of the published checkpoints, but for `stages`, which are `layers` there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.batch import Mix
from tilework.core.bounds import check_below_one
from tilework.core.errors import ConfigError
from tilework.layers.block import Block
from tilework.layers.stems import PatchStemConfig, Stem, StemConfig, TokenFineStemConfig
from tilework.models.model import Model, ModelConfig, Output, Visible, halved, initial_share, start_small


@ModelConfig.choices.add("swin")
@dataclass(frozen=True)
class SwinConfig(ModelConfig):
    """Settings of a Swin Transformer."""

    width: int = 96  # of the first stage; doubles with each
    depths: tuple[int, ...] = (2, 2, 6, 2)
    heads: tuple[int, ...] = (3, 6, 12, 24)
    window: int = 7
    mlp_ratio: float = 4.0
    drop_path: float = 0.0  # of the last block; rises linearly from zero
    stem: StemConfig = field(default_factory=lambda: PatchStemConfig(4))

    def __post_init__(self) -> None:
        check_below_one(self, "drop_path")

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> Swin:
        """The network for an input of `channels` on `grid`."""
        if len(self.depths) != len(self.heads):
            raise ConfigError(f"{len(self.depths)} stages have {len(self.heads)} heads", "set model.heads for each")
        return Swin(self, self.stem.build(channels, grid, self.width), classes)

    def for_tokens(self) -> SwinConfig:
        """The same network with two by two tokens for each code."""
        return replace(self, stem=TokenFineStemConfig())


class WindowAttention(nn.Module):
    """Attention among the positions of a window, with a learnt bias for each distance.

    A shifted window is cut from the map rolled by half a window; positions that the roll joined stay apart. On a
    map that windows do not divide, zeros on the right and below take part too, as in published detectors.
    """

    distance: Tensor  # (n, n) rows of the table
    apart: Tensor | None  # (M, n, n) pairs between which the edge of the map lies

    def __init__(self, width: int, heads: int, grid: tuple[int, int], window: int, shifted: bool) -> None:
        super().__init__()
        if width % heads:
            raise ConfigError(f"a width of {width} is no multiple of {heads} heads", "change model.heads")
        self.heads, self.grid, self.shifted = heads, grid, shifted
        self.window = (min(window, grid[0]), min(window, grid[1]))
        distances = (2 * self.window[0] - 1) * (2 * self.window[1] - 1)
        self.relative_position_bias_table = nn.Parameter(torch.empty(distances, heads))
        self.register_buffer("distance", self._distances(), persistent=False)
        self.register_buffer("apart", self._apart(grid), persistent=False)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def _distances(self) -> Tensor:
        places = torch.cartesian_prod(torch.arange(self.window[0]), torch.arange(self.window[1]))  # (n, 2)
        down, across = (places[:, None] - places[None]).unbind(-1)
        return (down + self.window[0] - 1) * (2 * self.window[1] - 1) + across + self.window[1] - 1

    def shift(self, grid: tuple[int, int]) -> tuple[int, int]:
        """Half a window where the map is larger than one."""
        far = [self.shifted and side < whole for side, whole in zip(self.window, grid, strict=True)]
        return far[0] * (self.window[0] // 2), far[1] * (self.window[1] // 2)

    def _padded(self, grid: tuple[int, int]) -> tuple[int, int]:
        (rows, columns), (height, width) = self.window, grid
        return -(-height // rows) * rows, -(-width // columns) * columns

    def _apart(self, grid: tuple[int, int]) -> Tensor | None:
        padded, shift = self._padded(grid), self.shift(grid)
        if not any(shift):
            return None
        rows, columns = (torch.arange(n) >= n - by for n, by in zip(padded, shift, strict=True))
        part = 2 * rows[:, None] + 1 * columns  # (H, W)
        part = self._cut(part.view(1, -1, 1), padded)[0, ..., 0]  # (M, n)
        return part[:, :, None] != part[:, None]

    def _cut(self, x: Tensor, padded: tuple[int, int]) -> Tensor:
        """(B, P, D) to windows, (B, M, n, D)."""
        (rows, columns), (height, width) = self.window, padded
        x = x.reshape(x.shape[0], height // rows, rows, width // columns, columns, x.shape[2])
        return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)

    def _join(self, x: Tensor, padded: tuple[int, int]) -> Tensor:
        """Windows, (B, M, n, D), to (B, P, D)."""
        (rows, columns), (height, width) = self.window, padded
        x = x.reshape(x.shape[0], height // rows, width // columns, rows, columns, x.shape[3])
        return x.transpose(2, 3).flatten(1, 4)

    def forward(
        self, x: Tensor, share: Tensor | None = None, grid: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """x: (B, N, D); share: (B, N, S) or None; grid: of the tokens, where not the one built for.

        Returns both after one round of attention.
        """
        if grid is None or grid == self.grid:
            grid, apart = self.grid, self.apart
        else:
            with x.device:
                apart = self._apart(grid)
        padded, (down, across) = self._padded(grid), self.shift(grid)
        if padded != grid:
            if share is not None:
                raise ConfigError(
                    f"sources cannot be followed as {grid[0]}x{grid[1]} tokens are padded to {padded[0]}x{padded[1]}",
                    "change the size or model.window, or leave label alignment out",
                )
            edges = (0, 0, 0, padded[1] - grid[1], 0, padded[0] - grid[0])
            x = F.pad(x.unflatten(1, grid), edges).flatten(1, 2)  # (B, P, D)
        windows = self._cut(roll(x, padded, -down, -across), padded)  # (B, M, n, D)
        batch, count, places, width = windows.shape
        qkv = self.qkv(windows).reshape(batch, count, places, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(3, 0, 1, 4, 2, 5).flatten(2, 3)  # each (B, M k, n, D/k)
        bias = self.relative_position_bias_table[self.distance].permute(2, 0, 1).expand(count, -1, -1, -1)
        if apart is not None:
            bias = bias.masked_fill(apart[:, None], float("-inf"))  # (M, k, n, n)
        bias = bias.flatten(0, 1).to(q.dtype)
        if share is None:
            y = F.scaled_dot_product_attention(q, k, v, bias[None])
        else:  # the matrix itself is needed
            a = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 + bias).softmax(
                -1, dtype=torch.float32
            )  # (B, M k, n, n)
            y = a.to(v.dtype) @ v
            with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
                mean = a.unflatten(1, (count, self.heads)).mean(2)  # (B, M, n, n)
                shares = self._cut(roll(share, padded, -down, -across), padded)
                share = roll(self._join(mean @ shares, padded), padded, down, across)
        y = torch.cat(y.unflatten(1, (count, self.heads)).unbind(2), -1)  # (B, M, n, D); ONNX knows no view of them
        y = roll(self._join(self.proj(y), padded), padded, down, across)  # (B, P, D)
        return (y if padded == grid else y.unflatten(1, padded)[:, : grid[0], : grid[1]].flatten(1, 2)), share


def roll(x: Tensor, grid: tuple[int, int], down: int, across: int) -> Tensor:
    """Tokens moved on their grid, around its edges. x: (B, N, D)."""
    return x.unflatten(1, grid).roll((down, across), (1, 2)).flatten(1, 2) if down or across else x


class PatchMerging(nn.Module):
    """Four neighbouring tokens to one of twice the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)
        self.norm = nn.LayerNorm(4 * width)

    def forward(self, x: Tensor, share: Tensor | None, grid: tuple[int, int]) -> tuple[Tensor, Tensor | None]:
        """x: (B, N, D), share: (B, N, S) or None. Returns (B, N/4, 2D) and the mean of the four shares."""
        x = self.reduction(self.norm(self._fours(x, grid).flatten(2)))
        return x, None if share is None else self._fours(share, grid).mean(2)

    def _fours(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """(B, N, D) to (B, N/4, 4, D), the lower neighbour before the right one."""
        height, width = halved(grid)
        x = x.reshape(x.shape[0], height, 2, width, 2, x.shape[2])
        return x.permute(0, 1, 3, 4, 2, 5).flatten(3, 4).flatten(1, 2)


class Stage(nn.Module):
    """Blocks on one grid, every other one with shifted windows; and what makes it coarser, but for the last stage."""

    def __init__(self, config: SwinConfig, index: int, grid: tuple[int, int]) -> None:
        super().__init__()
        width, heads = config.width << index, config.heads[index]
        before, total = sum(config.depths[:index]), sum(config.depths)
        self.blocks = nn.ModuleList()
        for i in range(config.depths[index]):
            drop = config.drop_path * (before + i) / max(1, total - 1)
            block = Block(width, heads, config.mlp_ratio, drop, eps=1e-5)
            block.add_module("attn", WindowAttention(width, heads, grid, config.window, shifted=i % 2 == 1))
            self.blocks.append(block)
        self.downsample = PatchMerging(width) if index < len(config.depths) - 1 else None

    def forward(self, x: Tensor, share: Tensor | None, grid: tuple[int, int]) -> tuple[Tensor, Tensor | None]:
        """The blocks alone. x: (B, N, D); share: (B, N, S) or None."""
        for block in self.blocks:
            x, share = block(x, share, grid)
        return x, share


class Swin(Model):
    """Stages of windowed attention; the head reads the mean of the last tokens."""

    stem_names = ("patch_embed.",)
    head_names = ("head.",)
    stages_want_norm = True

    def __init__(self, config: SwinConfig, stem: Stem, classes: int) -> None:
        super().__init__()
        self.config = config
        self.takes = stem.takes
        self.patch_embed = stem
        self.patch_embed.add_module("norm", nn.LayerNorm(config.width))
        self.grid = stem.grid
        self.stages = nn.ModuleList()
        for i in range(len(config.depths)):
            self.grid = halved(self.grid) if i else stem.grid
            self.stages.append(Stage(config, i, self.grid))
        self.stage_widths = tuple(config.width << i for i in range(len(config.depths)))
        self.stage_strides = tuple(stem.stride * 2**i for i in range(len(config.depths)))
        width = config.width << len(config.depths) - 1
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes) if classes else nn.Identity()
        self._initialise()

    def _initialise(self) -> None:
        start_small(self)
        for module in self.modules():
            if isinstance(module, WindowAttention):
                nn.init.trunc_normal_(module.relative_position_bias_table, std=0.02)

    def _forward(self, x: Tensor, mix: Mix | None, visible: Visible | None, track: bool, stages: bool) -> Output:
        """See `Model.forward`; no token can be left out. Stages have no norm after them, unlike published detectors."""
        if visible is not None:
            raise ConfigError("a Swin cannot leave tokens out", "windows need whole maps: use a ViT")
        grid = self.patch_embed.token_grid(x)
        stem = self.patch_embed(x)  # (B, D, h, w)
        mixed = mix.apply(stem) if mix is not None and mix.after_stem else stem
        tokens = self.patch_embed.get_submodule("norm")(mixed.flatten(2).transpose(1, 2))  # (B, N, D)
        share = initial_share(mix, len(x), grid, x.device) if track else None  # (B, N, 2)
        given = []
        for i, stage in enumerate(self.stages):
            if i:
                tokens, share = self.stages[i - 1].get_submodule("downsample")(tokens, share, grid)
                grid = halved(grid)
            tokens, share = stage(tokens, share, grid)
            if stages:
                given.append(tokens.transpose(1, 2).unflatten(2, grid))
        tokens = self.norm(tokens)
        share = None if share is None else share.mean(1)
        return Output(self.head(tokens.mean(1)), tokens, stem, grid, share=share, stages=tuple(given))

    def token_logits(self, out: Output) -> Tensor:
        """What the head says of each position, (B, N, K); their mean is what it says of the image."""
        return self.head(out.tokens)

    def translate(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Names of the published checkpoints, and of timm's, where a stage starts with what makes the grid coarser."""
        late = int("layers.0.downsample.norm.weight" not in tensors)
        found = {}
        for name, tensor in tensors.items():
            if name.endswith((".relative_position_index", ".attn_mask")):
                continue  # computed here
            name = re.sub(r"^layers\.(\d+)\.downsample", lambda m: f"stages.{int(m[1]) - late}.downsample", name)
            found[re.sub(r"^layers\.", "stages.", name).replace("head.fc.", "head.")] = tensor
        return found

    def layer_of(self, name: str) -> int:
        """0: stem; then one for each block, the last of a stage with its downsampling; last: norm and head."""
        if name.startswith(self.stem_names):
            return 0
        if not name.startswith("stages."):
            return self.layers - 1
        stage, kind, block = name.split(".")[1:4]
        depths = self.config.depths
        return sum(depths[: int(stage)]) + (int(block) + 1 if kind == "blocks" else depths[int(stage)])

    @property
    def layers(self) -> int:
        """Stem, blocks, head."""
        return sum(self.config.depths) + 2
