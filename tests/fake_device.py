"""A device without hardware: torch's Python backend under fake tensors, which have a device and a shape but no numbers.

What a GPU would do badly raises here: an operation on tensors of two devices, and anything that must wait for the
device to know a number (`item`, `nonzero`, a mask as an index, `if tensor`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "nohardware"


@cache
def device() -> torch.device:
    """The device; registered once in a process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    return torch.device(NAME, 0)


class _Module(_DummyBackendModule):
    """What torch asks of a device."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Of autocast."""
        return [torch.bfloat16, torch.float16]


@cache
def _mode() -> FakeTensorMode:
    """The same for all of a process: some tensors are made once and kept."""
    device()
    return FakeTensorMode(allow_non_fake_inputs=False)


@contextmanager
def without_hardware() -> Iterator[FakeTensorMode]:
    """Tensors made inside have no numbers. `torch.tensor(..., device=...)` fills on the host, then moves."""
    mode, real = _mode(), torch.tensor

    def tensor(data: Any, *, device: Any = None, **options: Any) -> Tensor:
        made = real(data, **options)
        return made if device is None else made.to(device)

    with mode, patch("torch.tensor", tensor):
        yield mode


def moved(mode: FakeTensorMode, value: Tensor) -> Tensor:
    """A tensor of the host on the device, without its numbers."""
    return mode.from_tensor(value).to(device())


def move_module(mode: FakeTensorMode, module: nn.Module) -> None:
    """All parameters and buffers of a module, in place, and of modules that it keeps in lists."""
    kept = [
        one for part in module.modules() for value in vars(part).values() if isinstance(value, list) for one in value
    ]
    for one in kept:
        if isinstance(one, nn.Module):
            move_module(mode, one)
    known: dict[int, Tensor] = {}
    for part in module.modules():
        for name, parameter in list(part._parameters.items()):
            if parameter is not None:
                new = known.get(id(parameter))
                if new is None:
                    new = nn.Parameter(moved(mode, parameter).detach(), parameter.requires_grad)
                    known[id(parameter)] = new
                part._parameters[name] = new  # type: ignore[assignment]
        for name, buffer in list(part._buffers.items()):
            if buffer is not None:
                part._buffers[name] = known.setdefault(id(buffer), moved(mode, buffer))
