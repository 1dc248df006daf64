"""Emb-Noise: noise on code vectors that shifts colours and blurs details (SeiT, section 3).

B batch | n samples with noise | C code dim | H, W grid
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tilework.augment.augment import Augment, Stateless
from tilework.augment.compiled import draw_seed, kernels_for_draws, kernels_for_maps, over_samples
from tilework.core.batch import Batch, Stage
from tilework.core.bounds import check_shares
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws


@dataclass(frozen=True)
class Noise:
    """What is added to some samples."""

    rows: Tensor  # (n,) which
    values: Tensor  # (n, C, H, W)


@dataclass(frozen=True)
class KeyedNoise:
    """The same as a seed, from which a kernel makes the noise while it adds it."""

    rows: Tensor  # (n,) which
    seed: Tensor  # (2,)
    scale: float
    shape: tuple[int, int, int]  # C, H, W

    @property
    def values(self) -> Tensor:
        """The noise itself, (n, C, H, W)."""
        return self.add(torch.zeros(len(self.rows), *self.shape), self.rows)

    def add(self, x: Tensor, numbers: Tensor) -> Tensor:
        """x: (B, C, H, W); numbers: (B,) rows whose noise each one gets, -1 for none. A new tensor."""
        y = x.permute(0, 2, 3, 1).contiguous()  # as code maps lie in memory
        out, scale = torch.empty_like(y), (numbers >= 0) * self.scale
        kernel = kernels_for_draws(x.device).add_channel_noise
        over_samples(kernel, (y.flatten(1, 2), numbers, scale, out.flatten(1, 2)), self.seed)
        return out.permute(0, 3, 1, 2)


def sample_noise(chosen: Tensor, shape: tuple[int, int, int], scale: float = 1.0) -> Noise | KeyedNoise:
    """n_c + n, n_c ~ N(0, scale^2) per channel, n ~ N(0, scale^2) per element. chosen: (B,) bool; shape: C, H, W.

    On a CPU for the chosen samples alone, elsewhere for all: counting would wait for the device.
    """
    device, (channels, height, width) = chosen.device, shape
    counted = device.type == "cpu"
    rows = chosen.nonzero()[:, 0] if counted else torch.arange(len(chosen), device=device)
    if len(rows) and kernels_for_draws(device):
        return KeyedNoise(rows, draw_seed(), scale, shape)
    dense = torch.randn(len(rows), height, width, channels, device=device)  # as code maps lie in memory
    dense.add_(torch.randn(len(rows), 1, 1, channels, device=device))
    if not counted or scale != 1:
        dense.mul_(chosen[rows, None, None, None] * scale)
    return Noise(rows, dense.permute(0, 3, 1, 2))


def code_deviation(batch: Batch) -> float:
    """The unit of noise: as strong beside small code vectors as beside large ones."""
    if batch.deviation is None:
        raise ConfigError("noise comes in deviations of code vectors, and these are none", "put 'embed' before it")
    return batch.deviation


def add_noise(x: Tensor, p: Noise | KeyedNoise) -> Tensor:
    """x: (B, C, H, W); returns a new tensor."""
    if isinstance(p, KeyedNoise) and kernels_for_maps(x):
        return p.add(x, torch.full((len(x),), -1).index_put_((p.rows,), p.rows))
    y = x.permute(0, 2, 3, 1)
    flat = y.flatten(1).index_add(0, p.rows, p.values.permute(0, 2, 3, 1).flatten(1))  # quick on whole blocks
    return flat.view(y.shape).permute(0, 3, 1, 2)


@Augment.choices.add("embedding_noise")
@dataclass(frozen=True)
class EmbeddingNoise(Stateless[Noise | KeyedNoise]):
    """x + n_c + n with a probability.

    Chosen once per sample; the published code chooses twice, for the batch and then for half of it. Both parts have the
    deviation of the codes, as they do beside the published codebook, whose channels have a variance near 1.
    """

    stages: ClassVar[tuple[Stage, ...]] = ("map",)
    dense: ClassVar[bool] = True
    probability: float = 0.5
    scale: float = 1.0  # deviation of both, in deviations of the codes

    def __post_init__(self) -> None:
        check_shares(self, "probability")
        if self.scale < 0:
            raise ValueError(f"scale is {self.scale} but must not be negative")

    def needs_grid(self) -> bool:
        """Channels are disturbed wherever they are."""
        return False

    def sample(self, draws: Draws, batch: Batch) -> Noise | KeyedNoise:
        """The noise of the chosen samples."""
        chosen = draws.uniform("embedding_noise")[:, 0] < self.probability
        return sample_noise(chosen, (batch.x.shape[1], *batch.x.shape[2:]), self.scale * code_deviation(batch))

    def apply(self, batch: Batch, p: Noise | KeyedNoise) -> Batch:
        """x: (B, C, H, W)."""
        return batch.changed(x=add_noise(batch.x, p))
