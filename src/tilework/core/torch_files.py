"""Files of torch, read by its restricted reader: tensors and plain containers, nothing that runs."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from zipfile import is_zipfile

import torch

from tilework.core.errors import InputError


def read_torch(path: Path) -> object:
    """What a file of torch holds; refuses anything but tensors and containers of them."""
    try:
        with torch.serialization.safe_globals([Namespace]):  # training code keeps its arguments so: plain values
            found: object = torch.load(path, map_location="cpu", mmap=is_zipfile(path), weights_only=True)
        return found
    except Exception as error:  # the restricted reader refuses in many ways: UnpicklingError, RuntimeError, ...
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{path} is damaged or holds more than tensors; none of it was run", reason) from error
