"""Networks of senseless sizes, as damaged settings ask for them, are stopped while they are built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

TENSORS = 20_000  # of a network, at most: ten times those of the largest that are known
FREE = 2_000  # that any settings may ask for: built in less than half a second


class TooLarge(ValueError):
    """A network of more numbers than are accepted."""


@contextmanager
def without_memory(most: int, held: int | None = None) -> Iterator[None]:
    """Networks that are built inside have shapes only; one of more than so many numbers is stopped by ValueError.

    held: tensors of the file that their weights are read from; far more are not built.
    """
    largest = TENSORS if held is None else max(FREE, 4 * held)
    owner, count, tensors = get_ident(), 0, 0

    def add(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal count, tensors
        if get_ident() == owner and parameter is not None:
            count, tensors = count + parameter.numel(), tensors + 1
            if count > most or tensors > largest:
                raise TooLarge(f"a network of more than {most:,} numbers or {largest:,} tensors is asked for")

    hook = register_module_parameter_registration_hook(add)
    try:
        with torch.device("meta"):
            yield
    finally:
        hook.remove()
