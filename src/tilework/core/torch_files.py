"""Files of torch, read by its restricted reader, and safetensors: tensors and plain containers, nothing that runs."""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZIP_STORED, BadZipFile, ZipFile, is_zipfile

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file
from torch import Tensor

from tilework.core.errors import InputError
from tilework.core.files import open_plain


def check_stored(path: Path) -> None:
    """Refuse an archive whose entries are compressed: torch writes none, and few bytes could become very many."""
    try:
        with open_plain(path) as file:
            if not is_zipfile(file):
                return
            with ZipFile(file) as archive:
                packed = [entry.filename for entry in archive.infolist() if entry.compress_type != ZIP_STORED]
    except OSError as error:
        raise InputError(f"{path} cannot be read", str(error)) from error
    except (ValueError, NotImplementedError, BadZipFile) as error:
        raise InputError(f"{path} is damaged", f"restore it ({error})") from error
    if packed:
        what = f"{path} holds compressed data ({packed[0]}), as programs of TorchScript do; none of it was run"
        raise InputError(what, "save its tensors with torch.save, which compresses nothing")


def check_whole(path: Path, found: object) -> None:
    """Refuse tensors that claim more numbers than the file holds."""
    left, seen = [found], set[int]()
    while left:
        value = left.pop()
        if isinstance(value, Mapping | list | tuple) and id(value) not in seen:  # many ways can lead to the same one
            seen.add(id(value))
            left += value.values() if isinstance(value, Mapping) else value
        if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_quantized:
            continue
        if value.numel() * value.itemsize > value.untyped_storage().nbytes():
            raise InputError(f"{path} has a tensor of {tuple(value.shape)} in fewer bytes", "such files are not read")


def read_torch(path: Path) -> object:
    """What a file of torch holds; refuses anything but tensors and containers of them."""
    check_stored(path)
    try:
        with torch.serialization.safe_globals([Namespace]), warnings.catch_warnings():
            # training code keeps its arguments as a Namespace: plain values
            warnings.simplefilter("ignore")  # of what torch will no longer read one day
            found: object = torch.load(path, map_location="cpu", mmap=is_zipfile(path), weights_only=True)
        check_whole(path, found)
        return found
    except InputError:
        raise
    except Exception as error:  # the restricted reader refuses in many ways: UnpicklingError, RuntimeError, ...
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{path} is damaged or holds more than tensors; none of it was run", reason) from error


def load_tensors(source: bytes | Path) -> dict[str, Tensor]:
    """Tensors of safetensors, of a file's bytes or mapped from it; ValueError for anything else."""
    try:
        return load(source) if isinstance(source, bytes) else load_file(source)
    except (SafetensorError, KeyError, TypeError, RuntimeError, OverflowError, MemoryError) as error:
        raise ValueError(
            f"it holds no tensors that torch has: {str(error).strip().partition(chr(10))[0][:200]}"
        ) from error
