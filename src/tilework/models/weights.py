"""Weights of a checkpoint into a model: between pixels and tokens, numbers of classes, grids and poolings.

c class tokens | h, w token grid | N = h w | D width
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tilework.core.errors import ConfigError, InputError
from tilework.core.torch_files import load_tensors, read_torch
from tilework.layers.positions import resize_positions
from tilework.models.model import Model

TORCH_FILES = (".pt", ".pth", ".ckpt", ".bin")
WRAPPERS = ("model_ema", "state_dict", "model")  # keys under which others keep the tensors; the averaged ones first
NORMS = ("norm.", "fc_norm.")  # the last norm of a ViT: before a class token is read, after a mean is taken
COUNTERS = "num_batches_tracked"  # of batch norms; older checkpoints have none, and nothing reads them


@dataclass(frozen=True)
class Adopted:
    """What became of the tensors of a model, by name."""

    kept: tuple[str, ...]  # copied from the checkpoint as they are
    resized: tuple[str, ...]  # copied onto another grid
    replaced: tuple[str, ...]  # left fresh: the stem of another input, the head of other classes


def adopt(model: Model, tensors: Mapping[str, Tensor], grid: tuple[int, int] | None = None) -> Adopted:
    """Take over weights; the stem and the head stay fresh, each as a whole, where they do not fit.

    Nothing is changed if the weights are refused. grid: token grid of the checkpoint, if it is not a square.
    """
    names = {name.removeprefix(model.prefix): name for name in model.state_dict()}
    own = {name.removeprefix(model.prefix): tensor for name, tensor in model.state_dict().items()}
    given = _like(own, model.translate({name.removeprefix(model.prefix): t for name, t in tensors.items()}))
    fresh: set[str] = set()
    for starts in (model.stem_names, model.head_names):
        mine, theirs = _shapes(own, starts), _shapes(given, starts)
        if mine != theirs:
            fresh |= mine.keys() | theirs.keys()
    taken = {name: tensor for name, tensor in given.items() if name not in fresh}
    for name in [*own, *taken]:
        if name not in fresh and (misfit := _misfit(own.get(name), taken.get(name), name in model.position_grids)):
            raise ConfigError(
                f"these weights are a checkpoint of another model, as '{name}' {misfit}",
                "set the model as it was trained, or give another checkpoint",
            )
    for name, tensor in given.items():
        if not tensor.isfinite().all():
            raise InputError(f"'{name}' of the checkpoint is not finite", "give one from before training broke down")
    resized = set()
    for name, here in model.position_grids.items():
        if name in taken and (own[name].shape != taken[name].shape or grid not in (None, model.grid)):
            finer = here[0] // model.grid[0]  # stages of a pyramid
            told = None if grid is None else (finer * grid[0], finer * grid[1])
            taken[name] = _fit_positions(taken[name], own[name], here, told)
            resized.add(name)
    with torch.no_grad():
        for name, tensor in taken.items():
            own[name].copy_(tensor)
    return Adopted(
        kept=tuple(names[name] for name in own if name in taken and name not in resized),
        resized=tuple(names[name] for name in own if name in resized),
        replaced=tuple(names[name] for name in own if name in fresh),
    )


def _like(own: dict[str, Tensor], given: dict[str, Tensor]) -> dict[str, Tensor]:
    """A checkpoint in our precision, with the last norm and the counters named as the model has them."""
    if "dist_token" in given.keys() - own.keys():
        raise InputError("these weights are of a distilled DeiT, with a second token and head", "give the plain DeiT")
    given = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in given.items()}
    for here, there in (NORMS, NORMS[::-1]):
        if f"{here}weight" in own.keys() - given.keys() and f"{there}weight" in given.keys() - own.keys():
            given = {
                here + name.removeprefix(there) if name.startswith(there) else name: t for name, t in given.items()
            }
    return {name: tensor for name, tensor in own.items() if name.endswith(COUNTERS)} | given


def _shapes(tensors: dict[str, Tensor], starts: tuple[str, ...]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items() if name.startswith(starts)}


def _misfit(own: Tensor | None, given: Tensor | None, positions: bool) -> str:
    """Why a tensor cannot be taken; empty if it can."""
    if given is None:
        return "is missing there"
    if own is None:
        return "is unknown here"
    if own.is_floating_point() != given.is_floating_point():
        return f"is {given.dtype} there and {own.dtype} here"
    if own.shape == given.shape:
        return ""
    if positions and own.ndim == given.ndim == 3 and own.shape[::2] == given.shape[::2]:
        return ""  # another grid
    return f"is {tuple(given.shape)} there and {tuple(own.shape)} here"


def _fit_positions(given: Tensor, own: Tensor, grid: tuple[int, int], told: tuple[int, int] | None) -> Tensor:
    places = given.shape[1] - (own.shape[1] - math.prod(grid))
    side = math.isqrt(max(0, places))
    old = told or (side, side)
    if places < 1 or math.prod(old) != places:
        raise ConfigError(
            f"the checkpoint has positions for {places} tokens, not for {old[0]}x{old[1]}",
            "tell the grid it was for",
        )
    return resize_positions(given, old, grid)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors or torch file by name, half precision widened; nothing in the file can run."""
    if not path.is_file():
        raise InputError(f"no file {path}", f"give a checkpoint: .safetensors, {', '.join(TORCH_FILES)}")
    if path.suffix not in (".safetensors", *TORCH_FILES):
        raise InputError(f"{path} has no known ending", f"give a checkpoint: .safetensors, {', '.join(TORCH_FILES)}")
    try:
        found: Any = load_tensors(path) if path.suffix == ".safetensors" else read_torch(path)
    except (ValueError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} is damaged or holds more than tensors; none of it was run", reason) from error
    for wrapper in WRAPPERS:
        if isinstance(found, dict) and isinstance(found.get(wrapper), dict):
            found = found[wrapper]
    if not isinstance(found, dict) or not found:
        raise InputError(f"{path} holds no weights", "a dictionary of tensors by name is needed")
    for name, tensor in found.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor) or not _plain(tensor):
            raise InputError(f"{path} has something else than a tensor at {name!r}", "save its state_dict alone")
    if all(name.startswith("module.") for name in found):  # of a data-parallel or averaged model
        found = {name.removeprefix("module."): tensor for name, tensor in found.items()}
    half = (torch.float16, torch.bfloat16)
    return {
        name: tensor.detach().float() if tensor.dtype in half else tensor.detach() for name, tensor in found.items()
    }


def _plain(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
