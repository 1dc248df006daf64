"""Swin Transformer for pixels and for tokens: attention in shifted windows, in four stages (Liu et al., 2021).

B batch | h, w grid of a stage | N = h w | D width of a stage | S sources | k heads | M windows | n places of a window.
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
from tilework.core.errors import ConfigError
from tilework.layers.block import Block
from tilework.layers.stems import PatchStemConfig, Stem, StemConfig, TokenFineStemConfig
from tilework.models.model import Model, ModelConfig, Output, initial_share, start_small


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

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> Swin:
        """The network for an input of `channels` on `grid`."""
        if len(self.depths) != len(self.heads):
            raise ConfigError(f"{len(self.depths)} stages have {len(self.heads)} heads", "set model.heads for each")
        return Swin(self, self.stem.build(channels, grid, self.width), classes)

    def for_tokens(self) -> SwinConfig:
        """The same network with two by two tokens for each code."""
        return replace(self, stem=TokenFineStemConfig())


class WindowAttention(nn.Module):
    """Attention among the places of a window, with a learnt bias for each distance.

    A shifted window is cut from the map rolled by half a window; places that the roll brought together stay apart.
    """

    distance: Tensor  # (n, n) rows of the table
    apart: Tensor | None  # (M, n, n) pairs between which the edge of the map lies

    def __init__(self, width: int, heads: int, grid: tuple[int, int], window: int, shifted: bool) -> None:
        super().__init__()
        if width % heads:
            raise ConfigError(f"a width of {width} is no multiple of {heads} heads", "change model.heads")
        self.heads, self.grid = heads, grid
        self.window = (min(window, grid[0]), min(window, grid[1]))
        if grid[0] % self.window[0] or grid[1] % self.window[1]:
            raise ConfigError(
                f"a map of {grid[0]}x{grid[1]} does not divide into windows of {window}",
                "change the size or model.window",
            )
        far = [shifted and side < whole for side, whole in zip(self.window, grid, strict=True)]
        self.shift = (far[0] * (self.window[0] // 2), far[1] * (self.window[1] // 2))
        distances = (2 * self.window[0] - 1) * (2 * self.window[1] - 1)
        self.relative_position_bias_table = nn.Parameter(torch.empty(distances, heads))
        self.register_buffer("distance", self._distances(), persistent=False)
        self.register_buffer("apart", self._apart() if any(self.shift) else None, persistent=False)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def _distances(self) -> Tensor:
        places = torch.cartesian_prod(torch.arange(self.window[0]), torch.arange(self.window[1]))  # (n, 2)
        down, across = (places[:, None] - places[None]).unbind(-1)
        return (down + self.window[0] - 1) * (2 * self.window[1] - 1) + across + self.window[1] - 1

    def _apart(self) -> Tensor:
        rows, columns = (torch.arange(n) >= n - by for n, by in zip(self.grid, self.shift, strict=True))
        part = 2 * rows[:, None] + 1 * columns  # (h, w)
        part = self._cut(part.view(1, -1, 1))[0, ..., 0]  # (M, n)
        return part[:, :, None] != part[:, None]

    def _cut(self, x: Tensor) -> Tensor:
        """(B, N, D) to windows, (B, M, n, D)."""
        (rows, columns), (height, width) = self.window, self.grid
        x = x.reshape(x.shape[0], height // rows, rows, width // columns, columns, x.shape[2])
        return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)

    def _join(self, x: Tensor) -> Tensor:
        """Windows, (B, M, n, D), to (B, N, D)."""
        (rows, columns), (height, width) = self.window, self.grid
        x = x.reshape(x.shape[0], height // rows, width // columns, rows, columns, x.shape[3])
        return x.transpose(2, 3).flatten(1, 4)

    def _roll(self, x: Tensor, back: bool = False) -> Tensor:
        if not any(self.shift):
            return x
        by = self.shift if back else (-self.shift[0], -self.shift[1])
        return x.unflatten(1, self.grid).roll(by, (1, 2)).flatten(1, 2)

    def forward(self, x: Tensor, share: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """x: (B, N, D); share: (B, N, S) or None. Returns both after one round of attention."""
        windows = self._cut(self._roll(x))  # (B, M, n, D)
        batch, count, places, width = windows.shape
        qkv = self.qkv(windows).reshape(batch, count, places, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(3, 0, 1, 4, 2, 5).flatten(2, 3)  # each (B, M k, n, D/k)
        bias = self.relative_position_bias_table[self.distance].permute(2, 0, 1).expand(count, -1, -1, -1)
        if self.apart is not None:
            bias = bias.masked_fill(self.apart[:, None], float("-inf"))  # (M, k, n, n)
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
                share = self._roll(self._join(mean @ self._cut(self._roll(share))), back=True)
        y = torch.cat(y.unflatten(1, (count, self.heads)).unbind(2), -1)  # (B, M, n, D); ONNX knows no view of them
        return self._roll(self._join(self.proj(y)), back=True), share


class PatchMerging(nn.Module):
    """Four neighbouring tokens to one of twice the width."""

    def __init__(self, width: int, grid: tuple[int, int]) -> None:
        super().__init__()
        if grid[0] % 2 or grid[1] % 2:
            raise ConfigError(f"a map of {grid[0]}x{grid[1]} cannot be halved", "change the size")
        self.grid = grid
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)
        self.norm = nn.LayerNorm(4 * width)

    def forward(self, x: Tensor, share: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """x: (B, N, D), share: (B, N, S) or None. Returns (B, N/4, 2D) and the mean of the four shares."""
        x = self.reduction(self.norm(self._fours(x).flatten(2)))
        return x, None if share is None else self._fours(share).mean(2)

    def _fours(self, x: Tensor) -> Tensor:
        """(B, N, D) to (B, N/4, 4, D), the lower neighbour before the right one."""
        x = x.reshape(x.shape[0], self.grid[0] // 2, 2, self.grid[1] // 2, 2, x.shape[2])
        return x.permute(0, 1, 3, 4, 2, 5).flatten(3, 4).flatten(1, 2)


class Stage(nn.Module):
    """Blocks on one grid, every other one with shifted windows; then a coarser grid, but for the last stage."""

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
        self.downsample = PatchMerging(width, grid) if index < len(config.depths) - 1 else None

    def forward(self, x: Tensor, share: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """x: (B, N, D); share: (B, N, S) or None."""
        for block in self.blocks:
            x, share = block(x, share)
        return (x, share) if self.downsample is None else self.downsample(x, share)


class Swin(Model):
    """Stages of windowed attention; the head reads the mean of the last tokens."""

    stem_names = ("patch_embed.",)
    head_names = ("head.",)

    def __init__(self, config: SwinConfig, stem: Stem, classes: int) -> None:
        super().__init__()
        self.config = config
        self.takes = stem.takes
        self.patch_embed = stem
        self.patch_embed.add_module("norm", nn.LayerNorm(config.width))
        self.grid = stem.grid
        self.stages = nn.ModuleList()
        for i in range(len(config.depths)):
            self.grid = (stem.grid[0] >> i, stem.grid[1] >> i)
            self.stages.append(Stage(config, i, self.grid))
        width = config.width << len(config.depths) - 1
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes) if classes else nn.Identity()
        self._initialise()

    def _initialise(self) -> None:
        start_small(self)
        for module in self.modules():
            if isinstance(module, WindowAttention):
                nn.init.trunc_normal_(module.relative_position_bias_table, std=0.02)

    def forward(self, x: Tensor, *, mix: Mix | None = None, keep: Tensor | None = None, track: bool = False) -> Output:
        """See `Model.forward`; no token can be left out."""
        if keep is not None:
            raise ConfigError("a Swin cannot leave tokens out", "windows need whole maps: use a ViT")
        stem = self.patch_embed(x)  # (B, D, h, w)
        mixed = mix.apply(stem) if mix is not None and mix.after_stem else stem
        tokens = self.patch_embed.get_submodule("norm")(mixed.flatten(2).transpose(1, 2))  # (B, N, D)
        share = initial_share(mix, len(x), self.patch_embed.grid, x.device) if track else None  # (B, N, 2)
        for stage in self.stages:
            tokens, share = stage(tokens, share)
        tokens = self.norm(tokens)
        share = None if share is None else share.mean(1)
        return Output(self.head(tokens.mean(1)), tokens, stem, self.grid, share=share)

    def places(self, out: Output) -> Tensor:
        """What the head says of each place, (B, N, K); their mean is what it says of the image."""
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
