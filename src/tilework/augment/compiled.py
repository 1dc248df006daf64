"""Compiled kernels over the samples of a batch on the host; where there are none, torch computes the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tilework.core.compiled import in_parts, kernels

WORTH_A_THREAD = 16  # samples


def kernels_for(ids: Tensor, *tables: Tensor) -> Any:
    """Kernels for codes on the host and tables that are not learnt, or None.

    Whether there are any depends on the installation alone, so that a resumed run computes as it began.
    """
    if ids.device.type != "cpu" or ids.dtype != torch.int32 or any(table.requires_grad for table in tables):
        return None
    return kernels("tilework.augment.kernels")


def kernels_for_maps(*maps: Tensor) -> Any:
    """Kernels for maps on the host that no gradient goes through, or None: the installation and the data decide."""
    if any(x.device.type != "cpu" or x.dtype != torch.float32 or x.requires_grad for x in maps):
        return None
    return kernels("tilework.augment.kernels")


def kernels_for_draws(device: torch.device) -> Any:
    """Kernels for dense random numbers on the host, or None; they are keyed by `draw_seed`."""
    return kernels("tilework.core.kernels") if device.type == "cpu" else None


def draw_seed() -> Tensor:
    """Two words of torch's generator, (2,) int64."""
    return torch.randint(1 << 32, (2,))


def over_samples(kernel: Callable[..., int], samples: Sequence[Tensor], table: Tensor) -> None:
    """Run a kernel on tensors whose first side is the sample, the last of them its output, and a table of codes."""
    arrays, whole = [tensor.contiguous().numpy() for tensor in samples], table.contiguous().numpy()

    def run(rows: slice) -> int:
        return kernel(*(array[rows] for array in arrays), whole)

    if in_parts(run, len(arrays[0]), WORTH_A_THREAD) >= 0:
        raise IndexError(f"a code is outside 0..{len(table) - 1}")
