"""Flip: probabilities, twice is nothing, columns."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.augment import Flip, apply_all
from tilework.core.batch import Batch, Mix, Target
from tilework.core.rng import Draws


@dataclass(frozen=True)
class MapColumn:
    """A column that follows by torch's general sampler."""

    data: Tensor

    def warp(self, affine: Tensor, grid: tuple[int, int], filled: bool = False) -> MapColumn:
        places = F.affine_grid(affine, [len(affine), self.data.shape[1], *grid], align_corners=False)
        return MapColumn(F.grid_sample(self.data, places, align_corners=False, padding_mode="border"))

    def permute(self, source: Tensor) -> MapColumn:
        raise NotImplementedError

    def mix(self, mix: Mix) -> MapColumn:
        raise NotImplementedError

    def to(self, device: torch.device) -> MapColumn:
        return self

    def rows(self, which: slice) -> MapColumn:
        return MapColumn(self.data[which])


def make_batch(size: int = 6) -> Batch:
    x = torch.randn(size, 2, 5, 7, generator=torch.Generator().manual_seed(0))
    return Batch(x, Target.hard(torch.zeros(size, dtype=torch.int64)), torch.arange(size), {"copy": MapColumn(x)})


def test_probability_zero_changes_nothing() -> None:
    batch = make_batch(64)
    assert torch.equal(apply_all([Flip(0.0)], batch, Draws(0, 0, batch.index)).x, batch.x)


def test_probability_one_mirrors_every_column() -> None:
    batch = make_batch(64)
    out = apply_all([Flip(1.0)], batch, Draws(0, 0, batch.index)).x
    for column in range(7):
        assert torch.equal(out[..., column], batch.x[..., 6 - column])


def test_twice_is_the_identity() -> None:
    batch = make_batch()
    p = torch.tensor([True, False, True, True, False, False])
    flip = Flip()
    once = flip.apply(batch, p)
    assert not torch.equal(once.x, batch.x)
    assert torch.equal(flip.apply(once, p).x, batch.x)


def test_only_chosen_samples_flip() -> None:
    batch = make_batch()
    p = torch.tensor([True, False, True, True, False, False])
    out = Flip().apply(batch, p).x
    assert torch.equal(out[p], batch.x[p].flip(-1))
    assert torch.equal(out[~p], batch.x[~p])


@pytest.mark.parametrize("probability", [0.2, 0.5, 0.9])
def test_rate_is_the_probability(probability: float) -> None:
    batch = make_batch(5000)
    chosen = Flip(probability).sample(Draws(0, 0, batch.index), batch)
    assert chosen.shape == (5000,)
    assert chosen.float().mean().item() == pytest.approx(probability, abs=0.03)


def test_column_follows() -> None:
    batch = make_batch()
    out = Flip().apply(batch, torch.tensor([True, False, True, True, False, False]))
    assert torch.allclose(out.columns["copy"].data, out.x, atol=1e-5)


def test_bytes_stay_bytes() -> None:
    batch = make_batch()
    pixels = batch.changed(x=torch.randint(0, 256, (6, 3, 4, 4), dtype=torch.uint8), columns={})
    assert Flip().apply(pixels, torch.ones(6, dtype=torch.bool)).x.dtype == torch.uint8
