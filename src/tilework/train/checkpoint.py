"""Checkpoints: one directory per save, written atomically. No pickle.

checkpoints/step-00000120/{objective,optimiser,ema}.safetensors, state.json
checkpoints/latest           name of the newest complete one
checkpoints/best             name of the one with the best validation figure
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save
from torch import Tensor, nn

from tilework.core.errors import DamageError, TileworkError
from tilework.core.files import crc32c, new_directory, read_plain, sha256, write
from tilework.core.sealed import read_json, write_sealed
from tilework.core.torch_files import load_tensors
from tilework.models.without_memory import without_memory
from tilework.train.sharded import divided_like, gathered

VERSION = 1
SURPLUS = 4  # times the weights kept, that a network may have while it is built: parts may be replaced
STEP = "step"
SLOTS = {"AdamW": {STEP, "exp_avg", "exp_avg_sq"}, "SGD": {"momentum_buffer"}}  # of each parameter, by the optimiser
M = TypeVar("M", bound=nn.Module)


def save_checkpoint(
    root: Path,
    step: int,
    objective: nn.Module,
    slots: Mapping[str, Tensor],
    ema: nn.Module | None,
    keep: int,
    best: bool = False,
    due: Callable[[int], bool] = lambda step: True,
) -> None:
    """Write a checkpoint, point `latest` at it, and `best` if it is; remove older ones but the best.

    slots: state of the optimiser, as `optimiser_tensors` gives it.
    due: whether a step is one of those saved at regular intervals. `keep` counts these and this one: a run that was
    stopped in between ends with the checkpoints of an undisturbed one.
    """
    name = f"step-{step:08d}"
    with new_directory(root / name, replace=True) as folder:
        parts = {"objective": objective.state_dict(), "optimiser": slots}
        if ema is not None:
            parts["ema"] = ema.state_dict()
        for part, tensors in parts.items():
            (folder / f"{part}.safetensors").write_bytes(save(_once(tensors)))
        hashes = {file.name: sha256(file) for file in sorted(folder.glob("*.safetensors"))}
        write_sealed(folder / "state.json", {"version": VERSION, "step": step, "sha256": hashes})
    if best:  # first: a run killed in between repeats the evaluation, and would not know after `latest`
        _point(root / "best", name)
    _point(root / "latest", name)
    remove_old(root, keep, due)


def remove_old(root: Path, keep: int, due: Callable[[int], bool]) -> None:
    """Remove checkpoints before the newest but the best; `keep` counts the newest and those that are due."""
    latest = latest_checkpoint(root)
    found = [path for path in sorted(root.glob("step-*")) if latest is not None and path <= latest]
    kept = [path for path in found if path == latest or due(int(path.name.removeprefix("step-")))][-keep:]
    for old in {*found} - {*kept, best_checkpoint(root)}:
        aside = old.with_name(f".{old.name}.tmp")  # a removal cut short leaves nothing that looks like a checkpoint
        shutil.rmtree(old.rename(aside))


def latest_checkpoint(root: Path) -> Path | None:
    """The newest complete checkpoint below a directory."""
    return _named(root / "latest")


def best_checkpoint(root: Path) -> Path | None:
    """The checkpoint with the best validation figure; None where nothing was validated."""
    return _named(root / "best")


def _point(pointer: Path, name: str) -> None:
    """A name, and its checksum: names of checkpoints differ by a digit."""
    write(pointer, f"{name} {crc32c(name.encode()):08x}\n".encode())


def _named(pointer: Path) -> Path | None:
    if not pointer.is_file():
        return None
    name, _, checksum = pointer.read_text(errors="replace").strip().partition(" ")
    if checksum and checksum != f"{crc32c(name.encode()):08x}":  # older runs have none
        raise DamageError(f"{pointer} is damaged", "write the name of a checkpoint beside it into the file")
    path = pointer.parent / name
    if path.parent != pointer.parent or "\0" in name or not path.is_dir():  # it names one beside it, nothing elsewhere
        raise DamageError(f"{pointer} names {name}, which is missing", f"restore it or remove {pointer}")
    return path


def load_checkpoint(path: Path, objective: nn.Module, ema: nn.Module | None) -> int:
    """Restore model and averaged weights; returns the number of steps taken."""
    state = _state(path)
    _fill(objective, _tensors(path, "objective", state), path)
    if ema is not None:
        _fill(ema, _tensors(path, "ema", state), path)
    return int(state["step"])


def objective_tensors(path: Path) -> dict[str, Tensor]:
    """State of the objective, including its model."""
    return _tensors(path, "objective", _state(path))


def model_tensors(path: Path) -> dict[str, Tensor]:
    """Weights for evaluation: the averaged (EMA) ones if the run has them."""
    state = _state(path)
    part, prefix = ("ema", "module.") if "ema.safetensors" in state["sha256"] else ("objective", "model.")
    return {k.removeprefix(prefix): v for k, v in _tensors(path, part, state).items() if k.startswith(prefix)}


def trained_model(path: Path, build: Callable[[], M]) -> M:
    """A network with the weights of a checkpoint. Its size is looked at first: no memory is taken for a larger one."""
    tensors = model_tensors(path)
    kept = sum(value.numel() for value in tensors.values())
    try:
        with without_memory(SURPLUS * (kept + 1), len(tensors)):
            sizes = sum(value.numel() for value in build().state_dict().values())
    except TileworkError:
        raise
    except Exception as error:  # senseless settings can raise anything in a constructor
        raise DamageError(
            f"the settings do not fit {path}", f"restore the run ({' '.join(str(error).split())[:200]})"
        ) from error
    if sizes > 2 * kept:  # twice: weights may be tied, and are kept once
        raise DamageError(f"the settings do not fit {path}", "they ask for a larger network; restore the run")
    model = build()
    _fill(model, tensors, path)
    return model


def _state(path: Path) -> dict[str, Any]:
    try:
        state = read_json(path / "state.json")
        if state["version"] != VERSION:
            raise DamageError(f"{path} has checkpoint version {state['version']}, not {VERSION}", "update Tilework")
        if not isinstance(state["sha256"], dict) or type(state["step"]) is not int or not 0 <= state["step"] < 1 << 63:
            raise ValueError("no hashes, or no step")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamageError(f"{path / 'state.json'} cannot be read", f"remove the checkpoint ({error!r})") from error
    return state


def _tensors(path: Path, part: str, state: dict[str, Any]) -> dict[str, Tensor]:
    file = path / f"{part}.safetensors"
    if not file.is_file() or sha256(file) != state["sha256"].get(file.name):
        raise DamageError(f"{file} is missing or damaged", "restore it, or remove the run")
    try:
        return load_tensors(read_plain(file))
    except ValueError as error:
        raise DamageError(f"{file} is malformed", f"restore it, or remove the run ({error})") from error


def _once(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every tensor once, under its first name: objectives share their model, and weights may be tied."""
    first: dict[tuple[int, torch.Size], str] = {}
    for name, value in tensors.items():
        first.setdefault((value.data_ptr() or id(value), value.shape), name)
    return {name: tensors[name].contiguous() for name in first.values()}


def _fill(module: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    expected = _once(module.state_dict())
    wrong = list(expected.keys() ^ tensors.keys())
    wrong += [name for name in expected if name in tensors and not _fits(tensors[name], expected[name])]
    if wrong:
        raise DamageError(
            f"{path} is a checkpoint of another model", f"tensor '{min(wrong)}' does not fit; use its run"
        )
    module.load_state_dict(tensors, strict=False)  # what has a second name is the same memory


def _fits(value: Tensor, place: Tensor) -> bool:
    return value.shape == place.shape and value.dtype == place.dtype


def optimiser_tensors(optimiser: torch.optim.Optimizer, keep: bool = True) -> dict[str, Tensor]:
    """State of an optimiser by number of the parameter; all processes take part where it is divided among them.

    keep: whether this process needs it.
    """
    state = optimiser.state_dict()["state"]
    found: dict[str, Tensor] = {}
    for number, slots in sorted(state.items()):  # in the same order everywhere: files do not keep one
        for key, value in sorted(slots.items()):
            if value is not None:
                whole = gathered(value)
                if keep:
                    found[f"{number}.{key}"] = whole if whole is value else whole.cpu()
    return found


def load_optimiser(path: Path, optimiser: torch.optim.Optimizer) -> None:
    """Restore the state of an optimiser; one that is divided among processes takes its part of it."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    slots, numbers = SLOTS[type(optimiser).__name__], set(map(str, range(len(parameters))))
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in _tensors(path, "optimiser", _state(path)).items():
        number, _, key = name.partition(".")
        known = number in numbers and key in slots
        if not known or not _fits(value, torch.zeros(()) if key == STEP else parameters[int(number)]):
            raise DamageError(
                f"{path} is a checkpoint of another optimiser", f"'{name[:80]}' does not fit; use its run"
            )
        state.setdefault(int(number), {})[key] = divided_like(value, parameters[int(number)])
    lacking = [f"{key} of parameter {number}" for number, found in state.items() for key in slots if key not in found]
    if lacking:
        raise DamageError(f"{path} is a checkpoint of another optimiser", f"it has no {lacking[0]}; use its run")
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
