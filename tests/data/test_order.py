"""The order of samples: a permutation that is a function of seed and epoch."""

from __future__ import annotations

import numpy as np
import pytest

from tilework.data import epoch_order
from tilework.data.order import batch_of


@pytest.mark.parametrize("count", [1, 2, 7, 100, 4097])
@pytest.mark.parametrize("epoch", [0, 1, 299])
def test_every_sample_exactly_once(count: int, epoch: int) -> None:
    order = epoch_order(3, epoch, count)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(count))


def test_golden_order() -> None:
    assert epoch_order(0, 0, 100)[:10].tolist() == [18, 98, 42, 47, 34, 99, 73, 56, 71, 37]


def test_nothing_in_nothing() -> None:
    assert epoch_order(0, 0, 0).shape == (0,)


def test_order_is_a_function_of_seed_and_epoch() -> None:
    orders = {(seed, epoch): tuple(epoch_order(seed, epoch, 50)) for seed in range(3) for epoch in range(3)}
    assert len(set(orders.values())) == 9
    assert all(tuple(epoch_order(*key, 50)) == order for key, order in orders.items())


def test_places_are_about_uniform() -> None:
    places = np.stack([np.argsort(epoch_order(0, epoch, 10)) for epoch in range(2000)])  # (epoch, sample)
    counts = np.stack([np.bincount(places[:, sample], minlength=10) for sample in range(10)])
    assert counts.min() > 140  # 200 expected, standard deviation 13
    assert counts.max() < 260


@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_share_a_batch_without_overlap(world: int) -> None:
    order = epoch_order(0, 0, 40)
    parts = [batch_of(order, 3, 8, rank, world) for rank in range(world)]
    assert {len(part) for part in parts} == {8 // world}
    assert np.array_equal(np.concatenate(parts), order[24:32])


@pytest.mark.parametrize(("batch", "repeats"), [(12, 3), (8, 3), (8, 1), (6, 2)])
def test_copies_of_a_sample_share_its_batch(batch: int, repeats: int) -> None:
    order = epoch_order(0, 0, 40)
    different = -(-batch // repeats)
    whole = batch_of(order, 2, batch, repeats=repeats)
    assert len(set(whole.tolist())) == batch  # every copy has a number of its own
    assert set((whole % 40).tolist()) == set(order[2 * different : 3 * different].tolist())
    assert np.bincount(whole % 40).max() == repeats
    assert all(whole[i] % 40 != whole[i - 1] % 40 for i in range(batch))  # neighbours, which mixing pairs, differ
    halves = [batch_of(order, 2, batch, rank, 2, repeats) for rank in range(2)]
    assert np.array_equal(np.concatenate(halves), whole)
