"""Networks divided among two processes (FSDP2), blocks computed again, and compiled networks.

Oracle: the same run under DDP, or without the setting. Checkpoints have one format, whoever wrote them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import distributed

import sharded_runs
from small_models import small
from tilework.core.distributed import World
from tilework.core.errors import ConfigError, MachineError
from tilework.models import preset, presets
from tilework.models.model import repeated_blocks
from tilework.objectives import ClassifyConfig, MocoConfig
from tilework.runs.job import prepare
from tilework.train import FitConfig
from tilework.train.execution import check_execution, has_compiler, recompute_blocks
from tilework.train.sharded import check_sharding

CPU = World(0, 1, torch.device("cpu"))
LAST = f"checkpoints/step-{sharded_runs.STEPS:08d}"


def torchrun(*line: str) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", sharded_runs.__file__]
    done = subprocess.run([sys.executable, *launcher, *line], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr


def losses(out: Path) -> list[float]:
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [line[name] for line in lines for name in ("loss", "norm", "val_loss") if name in line]


def assert_close(one: Path, other: Path) -> None:
    assert losses(one) == pytest.approx(losses(other), abs=1e-5)
    for name in ("objective", "ema", "optimiser"):
        mine, yours = (load_file(out / LAST / f"{name}.safetensors") for out in (one, other))
        assert mine.keys() == yours.keys()
        assert all(mine[key].shape == yours[key].shape for key in mine)
        assert max(float((mine[key] - yours[key]).abs().max()) for key in mine) < 1e-5, name


def test_divided_training_equals_ddp_and_resumes_with_one_and_two_processes(
    store: Path, val_store: Path, tmp_path: Path
) -> None:
    torchrun(str(tmp_path))
    for name in ("sharded", "resumed"):
        assert_close(tmp_path / name, tmp_path / "ddp")
    results = [json.loads((tmp_path / name / "results.json").read_text()) for name in ("sharded", "ddp")]
    assert results[0] == pytest.approx(results[1], abs=1e-5)
    sharded_runs.resume(CPU, tmp_path, "sharded", "one")  # in one process, whole
    assert_close(tmp_path / "one", tmp_path / "ddp")


@pytest.mark.slow
def test_division_goes_with_the_other_settings_resumes_with_them_and_reads_checkpoints_of_ddp(
    store: Path, val_store: Path, tmp_path: Path
) -> None:
    torchrun(str(tmp_path), "more")
    for name in ("from ddp", "everything", "everything, resumed"):
        assert_close(tmp_path / name, tmp_path / "ddp")


def test_a_single_process_does_not_divide_and_nothing_is_written(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="start it as 'torchrun"):
        prepare(sharded_runs.run(shard=True), store, None, tmp_path / "run", CPU, "test", quiet=True)
    assert not (tmp_path / "run").exists()


def test_more_processes_than_samples_of_a_batch_are_refused_and_nothing_is_written(store: Path, tmp_path: Path) -> None:
    many = World(0, 13, torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"fit.batch=12 has no sample for each of 13 processes x 2 accumulation"):
        prepare(sharded_runs.run(), store, None, tmp_path / "run", many, "test", quiet=True)
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_divided_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    objective = ClassifyConfig().build(small("vit_s").build(3, (224, 224), 4))
    check_sharding(objective)
    with pytest.raises(ConfigError, match="picture_every"):
        check_execution(FitConfig(shard=True, picture_every=5), 2)
    objective.temperature = torch.nn.Parameter(torch.zeros(()))
    with pytest.raises(ConfigError, match="'temperature', a single number"):
        check_sharding(objective)
    with pytest.raises(ConfigError, match="Moco changes weights"):
        check_sharding(MocoConfig().build(small("vit_s").build(3, (224, 224), 0)))


@pytest.mark.parametrize("name", sorted({type(presets[name]): name for name in presets}.values()))
def test_blocks_computed_again_give_the_same_gradients_and_statistics(name: str) -> None:
    """For every kind of network, with what it drops in training."""
    x, found = torch.randn(4, 3, 224, 224), []
    for again in (False, True):
        torch.manual_seed(0)
        model = small(name).build(3, (224, 224), 4)
        assert repeated_blocks(model)
        if again:
            recompute_blocks(model)
        torch.manual_seed(1)
        model(x).logits.square().sum().backward()
        found.append(
            {
                **{key: p.grad for key, p in model.named_parameters() if p.grad is not None},
                **dict(model.named_buffers()),
            }
        )
    assert found[0].keys() == found[1].keys()
    for key in found[0]:
        torch.testing.assert_close(found[0][key], found[1][key], rtol=1e-5, atol=1e-6, msg=key)


def test_blocks_computed_again_keep_less_for_the_backward_pass() -> None:
    kept = []
    for again in (False, True):
        model = preset("vit_s", width=16, depth=6, heads=2).build(3, (224, 224), 4)
        if again:
            recompute_blocks(model)
        total = 0

        def count(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal total
            total += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            model(torch.randn(4, 3, 224, 224))
        kept.append(total)
    assert kept[1] < 0.5 * kept[0]


@pytest.mark.slow
@pytest.mark.skipif(not has_compiler(), reason="torch.compile needs a C++ compiler")
def test_a_compiled_network_has_the_same_losses(store: Path, val_store: Path, tmp_path: Path) -> None:
    sharded_runs.train(CPU, tmp_path, "plain")
    sharded_runs.train(CPU, tmp_path, "compiled", compile=True)
    assert_close(tmp_path / "compiled", tmp_path / "plain")


@pytest.mark.skipif(not has_compiler(), reason="torch.compile needs a C++ compiler")
def test_vit_s_is_one_graph() -> None:
    model = small("vit_s").build(3, (224, 224), 4)
    found = torch._dynamo.explain(model)(torch.randn(2, 3, 224, 224))
    assert found.graph_count == 1
    assert found.graph_break_count == 0


def test_a_missing_compiler_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineError, match="needs a C"):
        check_execution(FitConfig(compile=True), 1)
