"""The one walk over a data set that everything is measured on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch

from tilework.augment import AnyStep, apply_all
from tilework.core.batch import Batch
from tilework.core.distributed import World
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.data import Source, in_order
from tilework.evaluation.evaluator import Evaluator

T = TypeVar("T")


@torch.no_grad()  # not inference mode: attacks need gradients of the input, probes learn from the features
def evaluate(
    ask: Callable[[Batch], T],
    source: Source,
    steps: Sequence[AnyStep],
    evaluators: Sequence[Evaluator[T]],
    world: World,
    batch: int = 256,
    seed: int = 0,
) -> dict[str, float]:
    """Figures of all evaluators. Every sample counts once, whatever the batch size and the number of processes.

    ask: gives what the evaluators see of a batch, after the steps. seed: of what the steps draw.
    """

    def show(part: Batch) -> None:
        part = part.to(world.device)
        part = apply_all(steps, part, Draws(seed, 0, part.index))
        output = ask(part)
        for one in evaluators:
            one.update(part, output)

    seen = False
    for part in in_order(source, batch, world.rank, world.size):
        show(part)
        seen = True
    if not seen:  # a process without a batch learns from one sample what there is to merge
        show(source.batch(np.arange(1)))
    figures: dict[str, float] = {}
    for one in evaluators:
        if not seen:
            one.clear()
        gathered = {name: world.gather(value) for name, value in sorted(one.state().items())}
        one.merge([{name: parts[rank] for name, parts in gathered.items()} for rank in range(world.size)])
        found = one.compute()
        if twice := figures.keys() & found.keys():
            raise ConfigError(f"two evaluators give '{min(twice)}'", "evaluate one after the other")
        figures |= found
    return figures
