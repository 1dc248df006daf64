"""Batches in order, prepared ahead by one background thread."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch

from tilework.core.batch import Batch
from tilework.core.errors import ConfigError
from tilework.data.order import Order, StreamOrder, batch_of, epoch_order
from tilework.data.source import OrderName, Redrawn, Source, stream_of


@dataclass(frozen=True)
class Loader:
    """Shuffled training batches. A last partial batch is left out: every step sees `batch` samples in all."""

    source: Source
    batch: int  # over all processes
    seed: int = 0
    rank: int = 0
    world: int = 1
    ahead: int = 4
    pin: bool = False
    repeats: int = 1  # augmented copies of each sample in a batch
    order: OrderName = "auto"
    lanes: int = 16  # of a stream

    def __post_init__(self) -> None:
        if self.batch < self.world:
            raise ConfigError(f"a batch of {self.batch} cannot be shared by {self.world} processes", "raise fit.batch")
        if len(self.source) < self.batch:
            raise ConfigError(f"{len(self.source)} samples do not fill a batch of {self.batch}", "lower fit.batch")

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return len(self.source) // self.batch

    def indices(self, step: int) -> np.ndarray:
        """Global samples of this process at a step counted from the start of training."""
        epoch, within = divmod(step, self.steps)
        return self._part(self._order(epoch), within) % len(self.source)

    def run(self, start: int, stop: int) -> Iterator[Batch]:
        """Batches of steps start to stop, both counted from the start of training."""
        return _ahead(self._groups(start, stop), _depth(self.source, self.batch // self.world, self.ahead))

    def _groups(self, start: int, stop: int) -> Iterator[list[Batch]]:
        source, orders = self.source, self._orders(start, stop)
        for group in self._drawn(source, orders, start) if isinstance(source, Redrawn) else _grouped(source, orders):
            yield [batch.pin() for batch in group] if self.pin else group

    def _drawn(self, source: Redrawn, orders: Iterator[np.ndarray], start: int) -> Iterator[list[Batch]]:
        for step, numbers in enumerate(orders, start):
            yield [source.draw(self.seed, step // self.steps, numbers)]

    def _orders(self, start: int, stop: int) -> Iterator[np.ndarray]:
        order: Order = np.empty(0, np.int64)
        shuffled = -1
        for step in range(start, stop):
            epoch, within = divmod(step, self.steps)
            if epoch != shuffled:
                order, shuffled = self._order(epoch), epoch
            yield self._part(order, within)

    def _order(self, epoch: int) -> Order:
        stream = stream_of(self.source, self.order)
        if stream is None:
            return epoch_order(self.seed, epoch, len(self.source))
        stream.keep_open(2 * self.lanes)
        return StreamOrder(self.seed, epoch, stream.sizes, -(-self.batch // self.repeats), self.lanes)

    def _part(self, order: Order, within: int) -> np.ndarray:
        return batch_of(order, within, self.batch, self.rank, self.world, self.repeats)


def in_order(source: Source, batch: int, rank: int = 0, world: int = 1, ahead: int = 4) -> Iterator[Batch]:
    """Every sample once, unshuffled, the last batch partial: for evaluation. Processes take turns by batch."""
    starts = range(rank * batch, len(source), batch * world)
    groups = _grouped(source, (np.arange(s, min(s + batch, len(source))) for s in starts))
    return _ahead(groups, _depth(source, batch, ahead))


def _depth(source: Source, batch: int, ahead: int) -> int:
    """Groups that wait: one of several batches, or `ahead` batches. While a group is used, the next ones are read."""
    return max(1, min(ahead, ahead * batch // source.together))


def _grouped(source: Source, orders: Iterator[np.ndarray]) -> Iterator[list[Batch]]:
    """Batches of the samples given, several of them read in one call where the source is faster that way."""
    held: list[np.ndarray] = []
    for index in itertools.chain(orders, [None]):
        if index is not None:
            held.append(index)
        if held and (index is None or sum(map(len, held)) >= source.together):
            numbers, at = np.concatenate(held), 0
            whole = source.batch(numbers % len(source))
            if len(whole.index) == len(numbers):  # else some are broken, and left out: in evaluation only
                whole = whole.changed(index=torch.from_numpy(numbers))
            group = []
            for one in held:
                group.append(whole.rows(slice(at, at + len(one))) if len(held) > 1 else whole)
                at += len(one)
            if len(whole.index):
                yield group
            held = []


def _ahead(groups: Iterator[list[Batch]], depth: int) -> Iterator[Batch]:
    """Run an iterator in a thread, some groups ahead; its error surfaces here, and leaving early ends it."""
    ready: queue.Queue[list[Batch] | BaseException | None] = queue.Queue(depth)
    left = threading.Event()

    def put(item: list[Batch] | BaseException | None) -> None:
        while not left.is_set():
            with suppress(queue.Full):
                return ready.put(item, timeout=0.1)

    def work() -> None:
        try:
            for group in groups:
                put(group)
                if left.is_set():
                    return
            put(None)
        except BaseException as error:  # handed to the consumer, which raises it
            put(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield from item
    finally:
        left.set()
        thread.join()
