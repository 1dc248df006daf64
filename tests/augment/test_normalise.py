"""Normalise and scale: bytes to numbers, against scalar arithmetic."""

from __future__ import annotations

import pytest
import torch

from tilework.augment import Augment, Normalise
from tilework.augment.scale import Scale
from tilework.core.batch import Batch, Target


def make_batch() -> Batch:
    pixels = torch.randint(0, 256, (2, 3, 4, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Batch(pixels, Target.hard(torch.zeros(2, dtype=torch.int64)), torch.arange(2))


@pytest.mark.parametrize(
    ("augment", "mean", "std"),
    [
        (Normalise(), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        (Normalise(mean=(0.5, 0.4, 0.3), std=(1.0, 2.0, 4.0)), (0.5, 0.4, 0.3), (1.0, 2.0, 4.0)),
        (Scale(), (0, 0, 0), (1, 1, 1)),
    ],
)
def test_values(augment: Augment, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    batch = make_batch()
    out = augment.apply(batch, None).x
    assert out.dtype == torch.float32
    for channel in range(3):
        for value, byte in zip(out[:, channel].flatten().tolist(), batch.x[:, channel].flatten().tolist(), strict=True):
            assert value == pytest.approx((byte / 255 - mean[channel]) / std[channel], abs=1e-5)
