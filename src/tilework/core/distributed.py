"""One process or many: ranks and devices."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import distributed

from tilework.core.errors import MachineError
from tilework.core.launcher import end_with_launcher

OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"  # torchrun: workers get a store of their own at every restart


@dataclass(frozen=True)
class World:
    """Rank and device of this process, and collective operations."""

    rank: int
    size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this process logs and saves."""
        return self.rank == 0

    @property
    def first_here(self) -> bool:
        """Whether this process is the first one on its machine."""
        return int(os.environ.get("LOCAL_RANK", "0")) == 0

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        if self.size == 1:
            return flag
        seen = torch.tensor(float(flag), device=self.device)
        distributed.all_reduce(seen, distributed.ReduceOp.MAX)
        return bool(seen.item())

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over all processes."""
        if self.size > 1:
            distributed.all_reduce(values)
        return values

    def gather(self, values: torch.Tensor) -> list[torch.Tensor]:
        """The tensor of every process, by rank, on this device; first dimensions may differ."""
        if self.size == 1:
            return [values]
        rows = torch.tensor([len(values)], device=self.device)
        counts = [torch.empty_like(rows) for _ in range(self.size)]
        distributed.all_gather(counts, rows)
        lengths = torch.cat(counts).tolist()
        padded = values.new_zeros((max(lengths), *values.shape[1:]), device=self.device)
        padded[: len(values)] = values
        parts = [torch.empty_like(padded) for _ in lengths]
        distributed.all_gather(parts, padded)
        return [part[:length] for part, length in zip(parts, lengths, strict=True)]

    def wait(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            distributed.barrier()


def pick_device(name: str) -> torch.device:
    """The device 'auto', 'cpu', 'cuda', 'cuda:1' or 'mps'; an error if this machine lacks it."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        cards = torch.cuda.device_count()
        here = "cpu" + "".join(f", cuda:{i}" for i in range(cards))
        raise MachineError(f"device '{name}' is not available", f"this machine has {here}; try --device cpu") from error
    return device


@contextmanager
def join_world(device: str = "auto") -> Iterator[World]:
    """Join the process group under torchrun; a world of one process otherwise."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield World(0, 1, pick_device(device))
        return
    if os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0" and os.environ["RANK"] == "0":
        _warn_of_stale_addresses()
    end_with_launcher()
    rank, size, local = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    where = pick_device(device)
    if where.type == "cuda":
        where = torch.device("cuda", local)
        torch.cuda.set_device(where)
    distributed.init_process_group("nccl" if where.type == "cuda" else "gloo")
    try:
        yield World(rank, size, where)
    finally:
        distributed.destroy_process_group()


def _warn_of_stale_addresses() -> None:
    """Restarted workers find addresses of dead ones in the store that torchrun shares with them, and wait for ever."""
    if os.environ.get(OWN_STORE) != "1":
        what = "torchrun may hang when it restarts workers"
        print(f"tilework: {what}: set {OWN_STORE}=1 before it is started", file=sys.stderr)
