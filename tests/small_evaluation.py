"""A data set whose samples are the logits themselves, measured in one process or in several."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, distributed

from tilework.augment import Augment
from tilework.core.batch import Batch, Mix, Stage, Target
from tilework.core.distributed import World
from tilework.evaluation import Accuracy, Classified, Confusion, Evaluator, Features, evaluate
from tilework.models import Output

CLASSES = 6
CPU = World(0, 1, torch.device("cpu"))
CASES = ((23, 4), (3, 4), (4, 4), (9, 1), (1, 2))  # samples, batch: in some of them a second process has no batch


@dataclass(frozen=True)
class Location:
    """A column: a value for each place of a line, that follows what happens to the input."""

    values: Tensor  # (B, K)

    def warp(self, affine: Tensor, grid: tuple[int, int]) -> Location:
        flipped = affine[:, 0, 0] < 0
        return Location(torch.where(flipped[:, None], self.values.flip(1), self.values))

    def permute(self, source: Tensor) -> Location:
        return Location(self.values.gather(1, source.flatten(1)))

    def mix(self, mix: Mix) -> Location:
        raise NotImplementedError

    def to(self, device: torch.device) -> Location:
        return Location(self.values.to(device))

    def rows(self, which: slice) -> Location:
        return Location(self.values[which])


class Answers:
    """Samples of one line of pixels, which are its logits; the column 'place' is a copy of them."""

    stage: Stage = "pixels"
    grid, together, codebook = (1, CLASSES), 1, None
    classes = tuple("abcdef")

    def __init__(self, count: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.logits = torch.randn(count, CLASSES, generator=generator)
        self.labels = torch.randint(CLASSES - 1, (count,), generator=generator)  # the last class never occurs

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, index: np.ndarray) -> Batch:
        chosen = torch.from_numpy(index)
        x = self.logits[chosen]
        return Batch(x[:, None, None], Target.hard(self.labels[chosen]), chosen, {"place": Location(x)})


def ask(batch: Batch) -> Output:
    return Output(batch.x[:, 0, 0], batch.x[:, 0], batch.x, (1, 1))


class Sums(Evaluator[Output]):
    """Both kinds of state in one evaluator: a sum of floats, a count, and rows of two sides."""

    def update(self, batch: Batch, output: Output) -> None:
        self.add(total=output.logits.double().sum(0), high=(output.logits > 0).sum())
        self.keep(batch, twice=output.tokens.repeat(1, 2, 1) * 2, positive=output.logits > 0)

    def compute(self) -> dict[str, float]:
        return {"high": float(self.total("high")), "first": float(self.total("total")[0])}


def measure(world: World, count: int, batch: int, steps: Sequence[Augment] = ()) -> tuple[dict, dict[str, Tensor]]:
    """Figures, and everything the evaluators hold, in the order of the data."""
    source = Answers(count)
    confusion, features, sums = Confusion(CLASSES), Features(), Sums()
    classified = Classified(source.classes)
    figures = evaluate(ask, source, steps, [Accuracy(), confusion, features, sums], world, batch)
    evaluate(ask, source, steps, [classified], world, batch)  # alone: Accuracy gives top1, too
    held = {"counts": confusion.counts, "probabilities": classified.rows("probabilities"), "total": sums.total("total")}
    held |= dict(zip(("features", "labels"), features.pair(), strict=True))
    held |= {name: sums.rows(name) for name in ("twice", "positive")}
    return figures, {name: value.contiguous() for name, value in held.items()}


def process(rank: int, size: int, folder: Path) -> None:
    """One of several processes: writes what it finds to FOLDER/CASE-RANK."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    world = World(rank, size, torch.device("cpu"))
    for number, (count, batch) in enumerate(CASES):
        figures, held = measure(world, count, batch)
        (folder / f"{number}-{rank}.json").write_text(json.dumps(figures))
        save_file(held, folder / f"{number}-{rank}.safetensors")
    for kind in (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool):
        mine = torch.full((3 * rank, 2, 2), rank).to(kind)  # the first has none
        found = world.gather(mine)
        assert [part.shape for part in found] == [(3 * r, 2, 2) for r in range(size)]
        assert all(part.dtype == kind and (part == torch.tensor(r).to(kind)).all() for r, part in enumerate(found))
    assert [len(part) for part in world.gather(torch.zeros(0, 3))] == [0] * size
    distributed.destroy_process_group()
