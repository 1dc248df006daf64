"""Means of an objective's scores over a data set.

B batch
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from tilework.augment import Step, apply_all
from tilework.core.distributed import World
from tilework.core.rng import Draws
from tilework.data import Source, in_order
from tilework.objectives import Objective


@torch.inference_mode()
def average(
    objective: Objective, model: nn.Module, source: Source, augment: Sequence[Step[Any]], world: World, batch: int = 256
) -> dict[str, float]:
    """Every sample counts once, whatever the batch size and the number of processes."""
    model.eval()
    names: list[str] = []
    sums = torch.zeros(0, dtype=torch.float64)
    for part in in_order(source, batch, world.rank, world.size):
        part = part.to(world.device)
        scores = objective.score(model, apply_all(augment, part, Draws(0, 0, part.index)))
        if not names:
            names = list(scores)
            sums = torch.zeros(len(names), dtype=torch.float64, device=world.device)
        sums += torch.stack([scores[name].double().sum() for name in names])
    if not names:  # a process without a batch still takes part in the sum
        part = source.batch(np.arange(1)).to(world.device)
        names = list(objective.score(model, apply_all(augment, part, Draws(0, 0, part.index))))
        sums = torch.zeros(len(names), dtype=torch.float64, device=world.device)
    return dict(zip(names, (world.sum(sums) / len(source)).tolist(), strict=True))
