"""What the names and shapes of a checkpoint's tensors say."""

from __future__ import annotations

from collections.abc import Container, Mapping

import torch
from torch import Tensor

Shapes = dict[str, torch.Size]


def count_of(keys: Container[str], name: str) -> int:
    """How many tensors there are with 0, 1, 2, ... in the braces of `name`: a number in a name is never trusted."""
    count = 0
    while name.format(count) in keys:
        count += 1
    return count


def renamed(tensors: Mapping[str, Tensor], starts: Mapping[str, str], drop: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Tensors whose names start otherwise, without some. starts: what names start with, and what that becomes."""
    found = {}
    for name, tensor in tensors.items():
        if name not in drop:
            start = next((start for start in starts if name.startswith(start)), "")
            found[starts.get(start, "") + name.removeprefix(start)] = tensor
    return found
