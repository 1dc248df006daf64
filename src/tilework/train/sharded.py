"""Weights, gradients, averages and optimiser state divided among processes (FSDP2; Zhao et al., 2023).

Every block of the network is gathered when it is needed and divided again after it. A whole copy stays on the host:
evaluation, checkpoints and results take that one, so they are the same files and figures as without division.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, distributed, nn
from torch.optim.swa_utils import AveragedModel

from tilework.core.distributed import World
from tilework.core.errors import ConfigError
from tilework.models.model import repeated_blocks
from tilework.objectives import Objective

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


def check_sharding(objective: Objective) -> None:
    """Refuse what cannot be divided, before anything is."""
    if objective.changes_weights:
        what = f"{type(objective).__name__} changes weights itself, which fit.shard=true cannot follow"
        raise ConfigError(what, "set fit.shard=false")
    if scalar := next((name for name, p in objective.named_parameters() if p.ndim == 0), None):
        raise ConfigError(f"fit.shard=true cannot divide '{scalar}', a single number", "set fit.shard=false")


class Sharded:
    """Divided copies of an objective and of its averaged weights, and the whole ones that they are gathered into."""

    def __init__(self, objective: Objective, ema: AveragedModel | None, world: World) -> None:
        self.whole, self.whole_ema, self.world = objective, ema, world
        self.objective, self.ema = deepcopy(objective), deepcopy(ema)
        self._divided = _divide(self.objective, world)
        if self.ema is not None:
            _divide(self.ema.module, world)
            self.ema.to(world.device)  # its counter

    def sync(self, last: bool) -> None:
        """Whether the next backward pass ends with an exchange of gradients."""
        self._divided.set_requires_gradient_sync(last)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """The whole objective on the device, for as long as it is evaluated there."""
        self.gather()
        whole = [one for one in (self.whole, self.whole_ema) if one is not None]
        for one in whole:
            one.to(self.world.device)
        try:
            yield
        finally:
            for one in whole:
                one.to("cpu")

    def gather(self) -> None:
        """Fill the whole objective and its averages; all processes take part."""
        pairs: list[tuple[nn.Module, nn.Module]] = [(self.objective, self.whole)]
        if self.ema is not None and self.whole_ema is not None:
            pairs.append((self.ema, self.whole_ema))
        with torch.no_grad():
            for part, whole in pairs:
                for mine, own in zip(part.parameters(), whole.parameters(), strict=True):
                    own.copy_(gathered(mine))
                for statistic, held in zip(part.buffers(), whole.buffers(), strict=True):
                    distributed.broadcast(statistic, 0)  # as DDP does: they are those of the first process
                    held.copy_(statistic)


def _divide(module: nn.Module, world: World) -> FSDPModule:
    """Leave a part of each of its parameters in a module; the same module, with what FSDP2 adds to it."""
    from torch.distributed.fsdp import fully_shard  # here: it takes a second, and few runs need it

    mesh = distributed.device_mesh.init_device_mesh(world.device.type, (world.size,))
    for block in repeated_blocks(module):
        fully_shard(block, mesh=mesh)
    divided = fully_shard(module, mesh=mesh)
    module.to(world.device)  # what it holds beside its parameters
    return divided


def gathered(value: Tensor) -> Tensor:
    """A tensor in one piece; all processes take part."""
    gather: Callable[[], Tensor] | None = getattr(value, "full_tensor", None)  # of DTensor
    return value if gather is None else gather()


def divided_like(value: Tensor, parameter: Tensor) -> Tensor:
    """The part of a tensor that this process has of a parameter; a number stays one."""
    if not hasattr(parameter, "full_tensor") or value.shape != parameter.shape:
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    here = value.to(parameter.device)
    return distribute_tensor(here, parameter.device_mesh, parameter.placements, src_data_rank=None)  # nothing is sent
