"""Every augmentation, network and objective on a device without hardware: nothing mixes devices or waits for one.

Oracle: torch's fake tensors, which refuse both (tests/fake_device.py). What must wait is listed in WAITS, with the
reason; a place that newly waits fails here.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

import tilework
from fake_device import device, move_module, moved, without_hardware
from golden.losses import CASES, SMALL, write_data
from small_models import small
from tilework.augment import Augment, apply_all, build_all
from tilework.augment.adapter import save_adapter
from tilework.core.batch import Batch, Stage, Target
from tilework.core.codebook import Codebook
from tilework.core.config import resolve
from tilework.core.distributed import World
from tilework.core.rng import Draws
from tilework.data import Loader
from tilework.layers.token_adapt import TokenAdaptNetwork
from tilework.models import presets
from tilework.runs.build import split_crop
from tilework.runs.job import prepare
from tilework.tokenizers import VitVqConfig, save_tokenizer

CODES, CODE_DIM, SIDE, COUNT = 20, 6, 32, 4
CODEBOOK = torch.randn(CODES, CODE_DIM, generator=torch.Generator().manual_seed(9))
WAITS: dict[str, str] = {}  # augmentations that cannot do without a number from the device, and why


def on_device(mode: FakeTensorMode, value: Any) -> Any:
    """A batch with all of its tensors on the device."""
    if isinstance(value, Tensor):
        return moved(mode, value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: on_device(mode, getattr(value, f.name)) for f in fields(value) if f.init})
    if isinstance(value, dict):
        return {name: on_device(mode, part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(on_device(mode, part) for part in value)
    return value


def test_the_device_refuses_what_a_gpu_does_badly() -> None:
    with without_hardware() as mode:
        there, here = moved(mode, torch.zeros(3)), mode.from_tensor(torch.zeros(3))
        assert (there + 1).device == device()
        with pytest.raises(RuntimeError, match="at least two devices"):
            _ = there + here
        with pytest.raises(DataDependentOutputException):
            there.sum().item()
        with pytest.raises((DynamicOutputShapeException, DataDependentOutputException)):
            there.nonzero()
        weight = moved(mode, torch.ones(3)).requires_grad_()
        (weight * there).sum().backward()
        assert weight.grad is not None
        assert weight.grad.device == device()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A TokenAdapt and a tokenizer, by the field that names them."""
    root = tmp_path_factory.mktemp("trained")
    save_adapter(root / "adapter", TokenAdaptNetwork(CODE_DIM, width=16, heads=2), CODEBOOK, {})
    config = VitVqConfig(patch=2, codes=CODES, code_dim=CODE_DIM, width=8, depth=1, heads=2)
    tokenizer = config.build(3, (2 * SIDE, 2 * SIDE), 0)
    with torch.no_grad():
        tokenizer.quantiser.table.copy_(CODEBOOK)
    save_tokenizer(root / "tokenizer", tokenizer, config, (2 * SIDE, 2 * SIDE))
    return {name: str(root / name) for name in ("adapter", "tokenizer")}


def samples(stage: Stage) -> Batch:
    index = torch.arange(COUNT)
    shapes = {"ids": (SIDE, SIDE), "stacks": (CODE_DIM, SIDE, SIDE), "map": (CODE_DIM, SIDE, SIDE)}
    if stage in ("ids", "stacks"):
        x = torch.randint(CODES, (COUNT, *shapes[stage]), dtype=torch.int32)
    else:
        x = torch.rand(COUNT, *shapes.get(stage, (3, SIDE, SIDE)))
    return Batch(x, Target.hard(index % 3), index, deviation=1.0 if stage == "map" else None)


@pytest.mark.parametrize(("name", "stage"), [(n, s) for n in Augment.choices for s in Augment.choices[n].stages])
def test_augmentations_stay_on_the_device(name: str, stage: Stage, places: dict[str, str]) -> None:
    choice = Augment.choices[name]
    own = {f.name: places[f.name] for f in fields(choice) if f.name in ("adapter", "tokenizer")}  # type: ignore[arg-type]
    step = choice(**own).build(Codebook.of(CODEBOOK))
    batch = samples(stage)
    with without_hardware() as mode:
        _move_step(mode, step)
        part = on_device(mode, batch)
        if name in WAITS:
            with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
                apply_all([step], part, Draws(0, 0, part.index))
            return
        out = apply_all([step], part, Draws(0, 0, part.index))
    assert out.x.device == device()
    assert out.target.weight.device == device()


def _move_step(mode: FakeTensorMode, step: Any) -> None:
    """Tensors and modules that a step holds, itself or in what it holds."""
    for name, value in list(getattr(step, "__dict__", {}).items()):
        if isinstance(value, torch.nn.Module):
            move_module(mode, value)
        elif isinstance(value, Tensor):
            object.__setattr__(step, name, moved(mode, value))
        else:
            for one in value if isinstance(value, tuple | list) else (value,):
                if type(one).__module__.startswith("tilework."):
                    _move_step(mode, one)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(presets))
def test_networks_stay_on_the_device(name: str) -> None:
    config: Any = small(name)
    model = config.build(3, (64, 64), 5)
    x = torch.rand(2, 3, 64, 64)
    with without_hardware() as mode:
        move_module(mode, model)
        out = model(moved(mode, x))
        out.logits.sum().backward()
    assert out.logits.device == device()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


@pytest.mark.parametrize(
    "name", [n if n in ("classify", "trans_mix") else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_training_steps_stay_on_the_device(name: str, root: Path, tmp_path: Path) -> None:
    case = CASES[name]
    settings = [s.replace("TOKENIZER", str(root / "tokenizer")) for s in (*SMALL, *case.settings)]
    settings += [f"maps={root / 'maps'}"] if case.maps else []
    run = resolve(tilework.recipes.recipes[case.recipe].run, None, settings)
    place = root / case.data
    job = prepare(run, place, place, tmp_path / "run", World(0, 1, torch.device("cpu")), name, True)
    batch = next(iter(Loader(job.source, 8).run(0, 1)))
    with without_hardware() as mode:
        move_module(mode, job.objective)
        steps = build_all(split_crop(run)[1], job.source.codebook, device())
        part = on_device(mode, batch)
        draws = Draws(0, 0, part.index, 0, 4)
        losses = job.objective.train()(apply_all(steps, part, draws), draws)
        losses["loss"].backward()
    gradients = [p.grad.device for p in job.objective.parameters() if p.grad is not None]
    assert gradients
    assert {losses["loss"].device, *gradients} == {device()}
