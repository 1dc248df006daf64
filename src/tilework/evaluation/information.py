"""What a stem lets through, and how much its tokens differ (Good tokenizers, sections 3.2 and 4.2).

B batch | D width | h, w token grid | N = h w
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.augment import AnyStep, apply_all
from tilework.core.batch import Batch
from tilework.core.distributed import World
from tilework.core.rng import Draws
from tilework.data import Source
from tilework.evaluation.averages import Averages
from tilework.evaluation.loop import evaluate
from tilework.layers.pixel_decoder import PixelDecoder, resized
from tilework.layers.stems import Stem


@dataclass(frozen=True)
class Information:
    """The two measures of a stem, over validation samples."""

    mse: float  # of what a decoder makes of the tokens, at 64x64 or on a smaller input's grid
    similarity: float  # mean cosine between the tokens of an image
    parameters: int  # of the stem


def token_similarity(tokens: Tensor) -> Tensor:
    """Mean cosine between distinct tokens of each image. tokens: (B, D, h, w); returns (B,)."""
    unit = F.normalize(tokens.flatten(2).float(), dim=1)  # (B, D, N)
    count = unit.shape[2]
    return (unit.sum(2).square().sum(1) - count) / max(1, count * (count - 1))


def information(
    stem: Stem,
    train: Source,
    val: Source,
    steps: tuple[Sequence[AnyStep], Sequence[AnyStep]],
    device: torch.device,
    epochs: int = 10,
    batch: int = 64,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> Information:
    """Train a decoder on the tokens of a frozen stem and judge it on others.

    steps: pipelines of both sources. progress: told of every pass over the data.
    """
    stem = stem.to(device).eval().requires_grad_(False)
    torch.manual_seed(seed)
    first = train.batch(np.arange(1)).to(device)
    channels = apply_all(steps[0], first, Draws(seed, 0, first.index)).x.shape[1]
    decoder = PixelDecoder(stem.width, channels).to(device)
    optimiser = torch.optim.Adam(decoder.parameters(), lr=1e-3, betas=(0.5, 0.999))

    def errors(x: Tensor) -> tuple[Tensor, Tensor]:
        """Squared error of each sample, and its tokens."""
        grid = (min(64, x.shape[2]), min(64, x.shape[3]))
        with torch.no_grad():
            tokens = stem(x)
        return (resized(decoder(tokens), grid) - resized(x, grid)).square().mean((1, 2, 3)), tokens

    for epoch in range(epochs):
        order = np.random.default_rng((seed, epoch)).permutation(len(train))
        for index in np.array_split(order, -(-len(order) // batch)):
            part = train.batch(index).to(device)
            optimiser.zero_grad()
            errors(apply_all(steps[0], part, Draws(seed, epoch, part.index)).x)[0].mean().backward()
            optimiser.step()
        progress(epoch + 1)

    def scores(part: Batch) -> dict[str, Tensor]:
        mse, tokens = errors(part.x)
        return {"mse": mse, "similarity": token_similarity(tokens)}

    found = evaluate(scores, val, steps[1], [Averages()], World(0, 1, device), batch, seed)
    return Information(**found, parameters=sum(p.numel() for p in stem.parameters()))
