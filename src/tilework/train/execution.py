"""How steps are computed: what this machine must have for it, and blocks computed twice (Chen et al., 2016)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import distributed, nn
from torch.utils.checkpoint import checkpoint

from tilework.core.errors import ConfigError, MachineError
from tilework.models.model import repeated_blocks
from tilework.train.settings import FitConfig


def check_execution(config: FitConfig, processes: int) -> None:
    """Refuse what this machine, or so many processes, cannot do."""
    if config.batch < processes * config.accumulate:
        raise ConfigError(
            f"fit.batch={config.batch} has no sample for each of {processes} processes x "
            f"{config.accumulate} accumulation steps",
            f"use {processes * config.accumulate} or more, or fewer processes",
        )
    if config.shard and not distributed.is_initialized():
        what = "fit.shard=true divides a network among processes, and this is a single one"
        raise ConfigError(what, "start it as 'torchrun --nproc-per-node N -m tilework train ...', or leave it out")
    if config.shard and config.picture_every:
        raise ConfigError("fit.picture_every draws with a whole network in one process", "set fit.shard=false")
    if config.compile and not has_compiler():
        raise MachineError("fit.compile=true needs a C++ compiler", "install g++, or leave it out")


def has_compiler() -> bool:
    """Whether torch.compile finds what it needs for CPUs."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "c++", "clang++") if name)


def recompute_blocks(network: nn.Module) -> None:
    """Keep only the input of every block, and compute it again when gradients need what lies inside."""
    for block in repeated_blocks(network):
        contexts = partial(_contexts, block)
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, context_fn=contexts)


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Around the first pass and around the second."""
    return nullcontext(), _same_buffers(block)


@contextmanager
def _same_buffers(block: nn.Module) -> Iterator[None]:
    """Statistics of batch norms count a batch once: the second pass leaves them as they were."""
    kept = [(buffer, buffer.clone()) for buffer in block.buffers()]
    try:
        yield
    finally:  # torch ends the second pass by an exception, as soon as it has what gradients need
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)
