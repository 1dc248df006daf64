"""Small runs in processes that torchrun started together: python tests/sharded_runs.py FOLDER."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch._dynamo.utils import counters

from tilework.augment import Embed, RandomResizedCrop
from tilework.core.distributed import World, join_world
from tilework.layers.stems import TokenStemConfig
from tilework.models import VitConfig
from tilework.objectives import ClassifyConfig
from tilework.runs import Run
from tilework.runs.job import train_in
from tilework.train import FitConfig, OptimConfig
from tilework.train.execution import has_compiler
from tilework.train.sharded import Sharded

STEPS = 6
FIT = FitConfig(
    epochs=0,
    steps=STEPS,
    batch=12,
    accumulate=2,
    ema=0.9,
    save_every=3,
    keep=9,
    log_every=1,
    optim=OptimConfig(clip=0.5),
)
EVERYTHING = {"shard": True, "activation_checkpointing": True, "compile": has_compiler()}


def run(**settings: bool) -> Run:
    """A small ViT with accumulation, clipping and averaged weights."""
    return Run(
        model=VitConfig(width=16, depth=2, heads=2, stem=TokenStemConfig()),
        objective=ClassifyConfig(),
        augment=(Embed(), RandomResizedCrop(size=(8, 8))),
        evaluation=(Embed(),),
        fit=replace(FIT, **settings),
    )


def train(world: World, root: Path, name: str, **settings: bool) -> None:
    """Begin a run, or go on with it."""
    train_in(world, run(**settings), root / "train.tok", root / "val.tok", None, root / name, "test", quiet=True)


def cut_back(done: Path, copy: Path) -> None:
    """A copy of a run as it was after its first checkpoint."""
    shutil.copytree(done, copy)
    for later in range(4, STEPS + 1):
        shutil.rmtree(copy / f"checkpoints/step-{later:08d}", ignore_errors=True)
    (copy / "checkpoints/best").unlink()
    (copy / "checkpoints/latest").write_text("step-00000003\n")


def resume(world: World, root: Path, done: str, name: str, **settings: bool) -> None:
    """Go on with a run as it was in the middle, under another name."""
    if world.leads:
        cut_back(root / done, root / name)
    world.wait()
    train(world, root, name, **settings)


def check_parts(world: World) -> None:
    """A process holds its part of the weights only."""
    objective = ClassifyConfig().build(VitConfig(width=16, depth=2, heads=2).build(3, (32, 32), 4))
    parts = Sharded(objective, None, world).objective
    mine = sum(parameter.to_local().numel() for parameter in parts.parameters())  # type: ignore[attr-defined]
    total = sum(parameter.numel() for parameter in objective.parameters())
    assert total / 3 < mine < total / 1.5, (mine, total)


def main(root: Path, more: bool) -> None:
    """DDP, divided, divided and resumed; more: with all settings, and from a checkpoint of DDP."""
    torch.set_num_threads(1)
    with join_world("cpu") as world:
        check_parts(world)
        train(world, root, "ddp")
        train(world, root, "sharded", shard=True)
        resume(world, root, "sharded", "resumed", shard=True)
        if more:
            resume(world, root, "ddp", "from ddp", shard=True)
            train(world, root, "everything", **EVERYTHING)
            assert bool(counters["stats"]["unique_graphs"]) == EVERYTHING["compile"], "nothing was compiled"
            resume(world, root, "everything", "everything, resumed", **EVERYTHING)


if __name__ == "__main__":
    main(Path(sys.argv[1]), "more" in sys.argv[2:])
