"""Codes of a frozen teacher's feature map: principal components, k-means, error diffusion; nothing is trained.

After vector-quantised knowledge distillation (BEiT v2, Peng et al., 2022), whose codes restore a teacher's map: here
they are the map itself. One code at a position, several (each codes what those before it left; RQ-VAE, Lee et al.,
2022), channels rounded to levels together (FSQ, Mentzer et al., 2023) or each by itself (rounded.py).

B batch | H, W pixels | h, w code grid | P positions | D channels of the teacher | C code dim | K codes
G codes of a position
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.core.errors import ConfigError, InputError
from tilework.data.image_files import Frame, attempt, decode_image
from tilework.data.image_folder import Images
from tilework.models.efficientnet_lite import EfficientnetLite0Config
from tilework.models.model import ModelConfig
from tilework.models.teacher import Channels, Teacher, build_teacher
from tilework.tokenizers.error_diffusion import diffuse
from tilework.tokenizers.fsq import FsqQuantiser
from tilework.tokenizers.kmeans import kmeans
from tilework.tokenizers.quantise import NearestQuantiser, Quantiser, best
from tilework.tokenizers.residual import ResidualQuantiser
from tilework.tokenizers.rounded import RoundedQuantiser, evenly_spaced
from tilework.tokenizers.tokenizer import Tokenizer

POINTS = 50_000  # that k-means looks at
POSITIONS = 64  # of each image that are looked at, at most
CPU_BATCH = 2  # images at once on a CPU: activations of more leave its caches, and half the time is page faults
BATCH = 32  # images that go through the teacher together
WIDER, NARROWER = 9, 7  # sides of an image and of its corners, where it is looked at in corners too
SPREAD = 0.8  # standard deviation of a channel that FSQ rounds, before it is bounded


@ModelConfig.choices.add("teacher_codes")
@dataclass(frozen=True)
class TeacherCodesConfig(ModelConfig):
    """Settings of codes of a teacher."""

    teacher: ModelConfig = field(default_factory=EfficientnetLite0Config)
    stage: int | None = -1  # of its maps, fine to coarse; null: the last tokens
    mean: Channels = EfficientnetLite0Config.mean  # of the pixels that it takes
    std: Channels = EfficientnetLite0Config.std
    size: tuple[int, int] = (224, 224)  # of images that it is built for
    fixed: bool = False  # whether it takes no other size
    pool: int = 1  # positions on a side that become one
    code_dim: int = 128  # principal components that are kept
    codes: int = 512
    depth: int = 1  # codes of a position
    diffusion: bool = True  # hand on what a code misses
    quantiser: Literal["nearest", "fsq", "rounded"] = "nearest"
    levels: tuple[int, ...] = ()  # of FSQ: code_dim of them, whose product is codes
    step: float = 0.85  # of rounded: how far apart the codes of a channel are, in its deviations
    looks: Literal["one", "corners"] = (
        "one"  # corners: features are means over the image and its corners (`corners_of`)
    )

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> TeacherCodes:
        """The tokenizer; images may have any size that is a multiple of the patch, unless the teacher has its own."""
        return TeacherCodes(self)


class ResidualStack(ResidualQuantiser):
    """G codes of a position, all numbered from 0; the codebook holds the vectors of all depths side by side."""

    @property
    def codebook(self) -> Tensor:
        """(K, G C)."""
        return self.embedding.weight.unflatten(0, (self.depth, self.each)).transpose(0, 1).flatten(1)

    def nearest(self, features: Tensor) -> Tensor:
        """(..., C) to (..., G) int64."""
        left, ids = features, []
        for table in self.embedding.weight.chunk(self.depth):
            ids.append((left @ table.T - table.square().sum(1) / 2).argmax(-1))
            left = left - table[ids[-1]]
        return torch.stack(ids, -1)

    def added(self, ids: Tensor) -> Tensor:
        """What the codes of a position stand for together. (..., G) to (..., C)."""
        first = torch.arange(self.depth, device=ids.device) * self.each
        return F.embedding(ids + first, self.embedding.weight).sum(-2)


def _quantiser(config: TeacherCodesConfig) -> Quantiser:
    if config.codes < 2 or config.code_dim < 1 or config.depth < 1 or config.pool < 1:
        what = f"{config.depth} of {config.codes} codes of {config.code_dim} channels, {config.pool} positions pooled"
        raise ConfigError(what, "two codes at least, and one of everything else")
    if config.quantiser == "fsq":
        if (len(config.levels), prod(config.levels), config.depth) != (config.code_dim, config.codes, 1):
            what = f"levels {config.levels} for {config.depth} of {config.codes} codes of {config.code_dim} dims"
            raise ConfigError(what, "set code_dim to their number, codes to their product, depth to 1")
        return FsqQuantiser(config.levels)
    if config.quantiser == "rounded":
        if config.depth != 1 or not 0 < config.step < inf:
            what = f"depth {config.depth} and steps of {config.step:g} deviations for channels that are rounded"
            raise ConfigError(what, "set depth=1 and a step above 0: each channel has one code")
        return RoundedQuantiser(config.codes, config.code_dim)
    if config.depth == 1:
        return NearestQuantiser(config.codes, config.code_dim)
    return ResidualStack(config.codes, config.code_dim, config.depth)


class TeacherCodes(Tokenizer):
    """A frozen network up to a map, a linear projection, and codes."""

    centre: Tensor
    directions: Tensor

    def __init__(self, config: TeacherCodesConfig, teacher: Teacher | None = None) -> None:
        """teacher: one that is at hand; None: a new one, whose weights are still to be loaded."""
        super().__init__()
        self.config = config
        self.teacher = teacher or build_teacher(config.teacher, config.stage, config.size, config.mean, config.std)
        with torch.no_grad():
            seen = self.teacher(torch.zeros(1, 3, *config.size))
        self.channels = seen.shape[1]
        if config.code_dim > self.channels:
            raise ConfigError(f"{config.code_dim} channels of a map of {self.channels}", "lower code_dim")
        self.patch = config.pool * config.size[0] // seen.shape[2]
        stride = [side // positions for side, positions in zip(config.size, seen.shape[2:], strict=True)]
        if stride[0] != stride[1] or any(side % self.patch for side in config.size):
            size, grid = (f"{rows}x{columns}" for rows, columns in (config.size, seen.shape[2:]))
            raise ConfigError(f"a teacher's map of {grid} for images of {size}", f"give multiples of {self.patch} px")
        self.size = config.size if config.fixed else None
        if config.looks == "corners":
            if (self.patch, self.patch) != config.size:
                raise ConfigError("looks=corners gives one position for an image", f"set pool={seen.shape[2]} with it")
            self.patch = self.patch * WIDER // NARROWER
            self.size = (self.patch, self.patch)
        self.stacked = config.depth > 1 or config.quantiser == "rounded"
        self.register_buffer("centre", torch.zeros(self.channels))
        self.register_buffer("directions", torch.eye(config.code_dim, self.channels))  # (C, D)
        self.quantiser = _quantiser(config)
        self.requires_grad_(False)

    @property
    def stack(self) -> int:
        """Codes of a position."""
        return self.config.code_dim if self.config.quantiser == "rounded" else self.config.depth

    def map(self, pixels: Tensor) -> Tensor:
        """The teacher's map. pixels: (B, 3, H, W) in [0, 1]; returns (B, h, w, D)."""
        if self.config.looks == "corners":
            return torch.stack([self._map(part) for part in corners_of(pixels, self.config.size)]).mean(0)
        return self._map(pixels)

    def _map(self, pixels: Tensor) -> Tensor:
        whole = pixels.contiguous(memory_format=torch.channels_last)
        apart = pixels.device.type == "cpu" and not torch.compiler.is_compiling()  # a graph takes any number of images
        found = torch.cat([self.teacher(part) for part in whole.split(CPU_BATCH)]) if apart else self.teacher(whole)
        return F.avg_pool2d(found, self.config.pool).permute(0, 2, 3, 1)

    def features(self, pixels: Tensor) -> Tensor:
        """pixels: (B, 3, H, W) in [0, 1]; returns (B, h, w, C)."""
        return (self.map(pixels) - self.centre) @ self.directions.T

    @torch.inference_mode()
    def encode_pooled(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Codes, and the mean of the teacher's whole map, (B, D)."""
        found = self.map(pixels)
        return self.nearest((found - self.centre) @ self.directions.T), found.mean((1, 2))

    def nearest(self, features: Tensor) -> Tensor:
        """Codes of maps, (B, h, w) int64, or (B, h, w, G)."""
        if not self.config.diffusion or self.config.quantiser != "nearest":
            return self.quantiser.nearest(features)
        if isinstance(self.quantiser, ResidualStack):
            return diffuse(features, self.quantiser.nearest, self.quantiser.added)
        table = self.codebook
        half = table.square().sum(1) / 2  # once, not at every position
        return diffuse(features, lambda x: (x @ table.T - half).argmax(-1), self.vectors)

    def vectors(self, ids: Tensor) -> Tensor:
        """Code vectors; of several codes side by side. ids: (B, h, w) or (B, h, w, G); returns (B, h, w, G C)."""
        if not self.stacked:
            return F.embedding(ids.long(), self.codebook)
        if isinstance(self.quantiser, RoundedQuantiser):
            return self.quantiser.values(ids)
        parts = self.codebook.chunk(self.config.depth, 1)
        return torch.cat([F.embedding(ids[..., g].long(), part) for g, part in enumerate(parts)], -1)

    @torch.no_grad()
    def with_codes(self, codebook: Tensor) -> TeacherCodes:
        """Itself with other codes, as a store or a run has them. codebook: (K, G C) of any number of codes."""
        depth, table = self.config.depth, codebook.to(self.centre)
        if self.config.quantiser == "fsq" or table.ndim != 2 or table.shape[1] != depth * self.config.code_dim:
            raise ConfigError(f"codes of {tuple(table.shape)} for {depth} x {self.config.code_dim} channels",
                              "give those of the same kind of tokenizer")  # fmt: skip
        table = table.unflatten(1, (depth, -1)).transpose(0, 1).flatten(0, 1)  # (G K, C)
        new = _quantiser(replace(self.config, codes=len(codebook)))
        new.get_parameter("embedding.weight").data = table.clone()
        self.quantiser = new.to(self.centre.device).requires_grad_(False)
        return self


def corners_of(pixels: Tensor, size: tuple[int, int]) -> list[Tensor]:
    """Images resized to a size, and their four corners of that size, which overlap. pixels: (B, 3, H, W)."""
    height, width = size
    rows, columns = (slice(height), slice(-height, None)), (slice(width), slice(-width, None))
    corners = [pixels[:, :, row, column] for row in rows for column in columns]
    return [F.interpolate(pixels, size, mode="bilinear", antialias=True), *corners]


@torch.no_grad()
def fit_projection(tokenizer: TeacherCodes, maps: Tensor) -> None:
    """The principal components of a teacher's maps, of unit variance each where FSQ rounds them. maps: (..., D)."""
    points = maps.reshape(-1, maps.shape[-1]).double()
    centre = points.mean(0)
    values, vectors = torch.linalg.eigh((points - centre).T @ (points - centre) / len(points))
    count = tokenizer.config.code_dim
    directions = vectors.flip(1)[:, :count].T
    if tokenizer.config.quantiser == "fsq":
        directions = directions * SPREAD / values.flip(0)[:count, None].clamp(min=1e-12).sqrt()
    tokenizer.centre.copy_(centre)
    tokenizer.directions.copy_(directions)


@torch.no_grad()
def fit_codes(tokenizer: TeacherCodes, features: Tensor, seed: int = 0) -> None:
    """k-means of features, depth by depth, vectors rounded to float16 as stores keep them; or what channels are
    rounded to. features: (..., C)."""
    if tokenizer.config.quantiser == "fsq":
        return
    points = features.reshape(-1, features.shape[-1])
    if tokenizer.config.quantiser == "rounded":
        table = evenly_spaced(points, tokenizer.config.codes, tokenizer.config.step)
        tokenizer.quantiser.get_parameter("embedding.weight").copy_(table)
        return
    with torch.random.fork_rng(devices=[]):  # the same codes of the same images
        torch.manual_seed(seed)
        left = points[torch.randperm(len(points))[:POINTS].to(points.device)]
        tables = []
        for _ in range(tokenizer.config.depth):
            table = kmeans(left, tokenizer.config.codes).half().float()
            tables.append(table)
            half = table.square().sum(1) / 2
            left = left - table[best(left, lambda x, table=table, half=half: x @ table.T - half, len(table))]  # type: ignore[misc]
    tokenizer.quantiser.get_parameter("embedding.weight").copy_(torch.cat(tables))


def some_pixels(images: Images, count: int, size: tuple[int, int], frame: Frame = "cover") -> Iterator[Tensor]:
    """Batches of the readable ones of up to `count` images, spread evenly, (B, 3, H, W) in [0, 1]."""
    some = np.unique(np.linspace(0, len(images) - 1, min(count, len(images))).astype(np.int64))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for part in np.split(some, range(BATCH, len(some), BATCH)):
            files = list(images.files(part.tolist()))
            found = pool.map(lambda file: attempt(file, lambda: decode_image(file, size, frame)), files)
            if good := [pixels for pixels in found if not isinstance(pixels, str)]:
                yield torch.from_numpy(np.stack(good)) / 255


@torch.no_grad()
def fit(tokenizer: TeacherCodes, batches: Iterable[Tensor], device: torch.device, projection: bool = True) -> None:
    """Codes, and the projection before them where asked for, of images. batches: each (B, 3, H, W) in [0, 1]."""
    tokenizer.to(device)
    maps = []
    for pixels in batches:
        found = tokenizer.map(pixels.to(device)).flatten(1, 2)  # (B, P, D)
        maps.append(found[:, :: -(-found.shape[1] // POSITIONS)])
    if not maps:
        raise InputError("no image can be read", "give others")
    seen = torch.cat(maps)
    if not seen.isfinite().all():
        raise InputError("the teacher's map is not finite", "give other weights")
    if projection:
        fit_projection(tokenizer, seen)
    fit_codes(tokenizer, (seen - tokenizer.centre) @ tokenizer.directions.T)
