"""The order of samples: a permutation that is a function of seed and epoch."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilework.data import epoch_order
from tilework.data.order import StreamOrder, batch_of


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


# shard after shard


def streamed(sizes: np.ndarray, batch: int, lanes: int, world: int = 1, epoch: int = 0) -> list[list[np.ndarray]]:
    """Batches of an epoch, of each process."""
    steps = int(sizes.sum()) // batch
    orders = [StreamOrder(5, epoch, sizes, batch, lanes) for _ in range(world)]
    return [[batch_of(order, s, batch, rank, world) for s in range(steps)] for rank, order in enumerate(orders)]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.one_of(
        st.lists(st.integers(1, 30), min_size=1, max_size=12),
        st.tuples(st.integers(1, 12), st.integers(1, 30), st.integers(1, 30)).map(lambda t: [t[1]] * t[0] + [t[2]]),
    ),
    batch=st.integers(1, 20),
    lanes=st.integers(1, 17),
    world=st.integers(1, 16),
)
def test_a_stream_sees_each_sample_once_whatever_the_world(
    sizes: list[int], batch: int, lanes: int, world: int
) -> None:
    one = streamed(np.array(sizes), batch, lanes)[0]
    seen = np.concatenate(one) if one else np.empty(0, np.int64)
    assert len(np.unique(seen)) == len(seen) == sum(sizes) // batch * batch
    assert not len(seen) or 0 <= seen.min() <= seen.max() < sum(sizes)
    many = streamed(np.array(sizes), batch, lanes, world)
    for step, whole in enumerate(one):
        assert np.array_equal(np.concatenate([mine[step] for mine in many]), whole)


def test_a_stream_resumes_anywhere_and_changes_with_the_epoch() -> None:
    sizes, batch = np.array([50] * 20 + [13]), 16
    first, second = (streamed(sizes, batch, 4, epoch=epoch)[0] for epoch in (0, 1))
    for step in (0, 1, 17, 30, len(first) - 1):
        assert np.array_equal(batch_of(StreamOrder(5, 0, sizes, batch, 4), step, batch), first[step])
    assert not any(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    left = set(range(int(sizes.sum()))) - set(np.concatenate(first).tolist())
    assert left != set(range(int(sizes.sum()))) - set(np.concatenate(second).tolist())  # another rest is left out


@pytest.mark.parametrize("world", [1, 2, 4, 8, 16])
def test_each_process_reads_its_own_shards_once_and_few_at_a_time(world: int) -> None:
    sizes = np.array([64] * 320 + [7])
    edges = np.cumsum(sizes)
    fetched = 0
    for mine in streamed(sizes, 32, 16, world):
        opened: list[list[int]] = [np.unique(np.searchsorted(edges, batch, side="right")).tolist() for batch in mine]
        assert max(map(len, opened)) <= 2 * 16 // world
        last_seen: dict[int, int] = {}
        for step, numbers in enumerate(opened):
            for number in numbers:
                fetched += number not in last_seen
                assert step - last_seen.get(number, step) <= 64  # not left and fetched again
                last_seen[number] = step
    assert len(sizes) <= fetched <= 1.05 * len(sizes)


def test_memory_of_a_stream_does_not_grow_with_the_data() -> None:
    peaks = []
    for shards in (32, 3200):
        tracemalloc.start()
        order = StreamOrder(0, 0, np.full(shards, 4096), 64, 16)
        for step in range(0, 65, 8):
            batch_of(order, step, 64)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (peaks[1] - peaks[0]) / (3168 * 4096) < 0.2  # bytes per sample: some numbers per shard
