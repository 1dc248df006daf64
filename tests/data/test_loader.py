"""Batches in order: shares of ranks, starting in the middle, errors and early ends of the thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import pytest
import torch

from tilework.core.batch import Batch, Stage, Target
from tilework.core.errors import ConfigError
from tilework.data import Loader, epoch_order, in_order


@dataclass
class Numbers:
    """A source whose samples are their own numbers."""

    count: int
    fails_at: int | None = None  # number of the batch that fails
    stage: Stage = "ids"
    grid: tuple[int, int] = (1, 1)
    codebook: torch.Tensor | None = None
    classes: tuple[str, ...] = ("only",)
    together: int = 1
    asked: list[list[int]] = field(default_factory=list)

    def __len__(self) -> int:
        return self.count

    def batch(self, index: np.ndarray) -> Batch:
        if len(self.asked) == self.fails_at:
            raise OSError("the disk is gone")
        self.asked.append(index.tolist())
        numbers = torch.from_numpy(np.asarray(index, np.int64))
        return Batch(numbers.view(-1, 1, 1), Target.hard(torch.zeros_like(numbers)), numbers)


def seen(batches: Iterator[Batch]) -> list[list[int]]:
    return [batch.index.tolist() for batch in batches]


def flat(lists: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


# training


@pytest.mark.parametrize("together", [3, 8, 9, 1000])
def test_reading_several_batches_at_once_changes_none_of_them(together: int) -> None:
    source = Numbers(23, together=together)
    assert seen(Loader(source, batch=4).run(3, 17)) == seen(Loader(Numbers(23), batch=4).run(3, 17))
    assert len(source.asked) == {3: 14, 8: 7, 9: 5, 1000: 1}[together]
    assert seen(in_order(source, 4)) == seen(in_order(Numbers(23), 4))


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_global_batches_do_not_depend_on_the_world(world: int) -> None:
    one = Loader(Numbers(1000, together=64), batch=24, seed=5)
    shares = [Loader(Numbers(1000, together=64), batch=24, seed=5, rank=r, world=world) for r in range(world)]
    parts = [seen(share.run(0, 2 * one.steps)) for share in shares]
    together = [sorted(flat(batch)) for batch in zip(*parts, strict=True)]
    assert together == [sorted(batch) for batch in seen(one.run(0, 2 * one.steps))]
    for step in range(one.steps):  # resumed anywhere
        assert seen(shares[-1].run(step, step + 3)) == parts[-1][step : step + 3]


def test_an_epoch_sees_every_sample_of_its_full_batches_once() -> None:
    loader = Loader(Numbers(23), batch=4)
    batches = seen(loader.run(0, loader.steps))
    assert loader.steps == 5
    assert [len(b) for b in batches] == [4] * 5  # three samples are left out
    assert flat(batches) == epoch_order(0, 0, 23)[:20].tolist()


def test_epochs_follow_each_other_with_their_own_order() -> None:
    loader = Loader(Numbers(10), batch=5, seed=7)
    batches = seen(loader.run(0, 6))
    for epoch in range(3):
        assert flat(batches[2 * epoch : 2 * epoch + 2]) == epoch_order(7, epoch, 10).tolist()


def test_samples_left_out_change_from_epoch_to_epoch() -> None:
    loader = Loader(Numbers(11), batch=5)
    used = set(flat(seen(loader.run(0, 2 * 20))))
    assert used == set(range(11))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_together_are_the_single_process(world: int) -> None:
    alone = seen(Loader(Numbers(37), batch=8, seed=1).run(0, 9))
    ranks = [seen(Loader(Numbers(37), batch=8, seed=1, rank=rank, world=world).run(0, 9)) for rank in range(world)]
    assert [flat(parts) for parts in zip(*ranks, strict=True)] == alone


def test_starting_anywhere_is_the_uninterrupted_tail() -> None:
    loader = Loader(Numbers(13), batch=3, seed=5)
    whole = seen(loader.run(0, 10))  # two epochs and a half
    for start in range(11):
        assert seen(loader.run(start, 10)) == whole[start:]


def test_indices_tell_what_a_step_reads() -> None:
    loader = Loader(Numbers(13), batch=4, seed=5, rank=1, world=2)
    assert [loader.indices(step).tolist() for step in range(7)] == seen(loader.run(0, 7))


def test_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(ConfigError, match="7 samples do not fill a batch of 8"):
        Loader(Numbers(7), batch=8)


def test_batch_as_large_as_the_data_is_fine() -> None:
    assert Loader(Numbers(8), batch=8).steps == 1


def test_ranks_share_a_batch_that_they_do_not_divide() -> None:
    shares = [seen(Loader(Numbers(100), batch=9, rank=rank, world=4).run(0, 11)) for rank in range(4)]
    assert [len(share[0]) for share in shares] == [2, 2, 2, 3]
    assert [flat(parts) for parts in zip(*shares, strict=True)] == seen(Loader(Numbers(100), batch=9).run(0, 11))


def test_batch_that_ranks_cannot_share_is_refused() -> None:
    with pytest.raises(ConfigError, match="batch of 9 cannot be shared by 10"):
        Loader(Numbers(100), batch=9, world=10)


# evaluation


def test_in_order_includes_the_partial_batch() -> None:
    assert seen(in_order(Numbers(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_in_order_ranks_cover_every_sample_once(world: int) -> None:
    parts = [seen(in_order(Numbers(29), 4, rank, world)) for rank in range(world)]
    assert sorted(flat(flat(part) for part in parts)) == list(range(29))


def test_in_order_rank_without_work_is_empty() -> None:
    assert seen(in_order(Numbers(3), 4, rank=1, world=2)) == []


# the thread


def test_error_of_the_source_surfaces_after_the_good_batches() -> None:
    run = Loader(Numbers(100, fails_at=2), batch=10).run(0, 10)
    assert len(next(run).index) == 10
    assert len(next(run).index) == 10
    with pytest.raises(OSError, match="the disk is gone"):
        next(run)


def test_error_ends_the_thread() -> None:
    before = set(threading.enumerate())
    with pytest.raises(OSError, match="gone"):
        list(in_order(Numbers(10, fails_at=0), 2))
    assert set(threading.enumerate()) <= before


def test_leaving_early_ends_the_thread() -> None:
    before = set(threading.enumerate())
    source = Numbers(1000)
    run = Loader(source, batch=10, ahead=2).run(0, 10_000)
    next(run)
    assert set(threading.enumerate()) - before  # it works ahead
    run.close()
    assert set(threading.enumerate()) <= before
    assert len(source.asked) < 10


def test_end_of_data_ends_the_thread() -> None:
    before = set(threading.enumerate())
    assert len(list(Loader(Numbers(10), batch=5).run(0, 8))) == 8
    assert set(threading.enumerate()) <= before


def test_thread_stays_only_a_few_batches_ahead() -> None:
    source = Numbers(1000)
    run = Loader(source, batch=10, ahead=3).run(0, 100)
    next(run)
    deadline = time.monotonic() + 5
    while len(source.asked) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert len(source.asked) == 5  # one taken, three waiting, one in hand
    run.close()


def test_repeated_samples_are_the_same_data_under_numbers_of_their_own() -> None:
    source = Numbers(20)
    loader = Loader(source, batch=6, seed=1, repeats=3)
    for step, batch in enumerate(loader.run(0, 5)):
        assert len(set(batch.index.tolist())) == 6
        assert torch.equal(batch.x, source.batch(batch.index.numpy() % 20).x)
        assert np.array_equal(loader.indices(step), batch.index.numpy() % 20)
        assert len(set(loader.indices(step).tolist())) == 2
