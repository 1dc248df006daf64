"""Devices by name, and the world of a single process."""

from __future__ import annotations

import pytest
import torch

from tilework.core.distributed import World, join_world, pick_device
from tilework.core.errors import MachineError


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def test_auto_without_a_card_is_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == torch.device("cpu")


def test_cpu_is_always_there() -> None:
    assert pick_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda:99", "nonsense", "", "cpu:x", "hpu", "vulkan"])
def test_a_device_that_is_not_here_is_refused(name: str) -> None:
    with pytest.raises(MachineError, match=f"device '{name}' is not available: this machine has cpu"):
        pick_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_cuda_is_refused_without_a_card() -> None:
    with pytest.raises(MachineError, match="device 'cuda' is not available"):
        pick_device("cuda")


def test_single_process_leads_a_world_of_one() -> None:
    with join_world("cpu") as here:
        assert (here.rank, here.size, here.device) == (0, 1, torch.device("cpu"))
        assert here.leads
        assert not torch.distributed.is_initialized()


def test_rank_without_world_size_is_a_single_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    with join_world("cpu") as here:
        assert (here.rank, here.size) == (0, 1)


def test_world_refuses_a_device_that_is_not_here() -> None:
    with pytest.raises(MachineError, match="nonsense"), join_world("nonsense"):
        pytest.fail("the block ran")


def test_collectives_of_one_process_are_the_identity() -> None:
    here = World(0, 1, torch.device("cpu"))
    assert here.any(True) is True
    assert here.any(False) is False
    assert here.sum(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
    assert [part.tolist() for part in here.gather(torch.tensor([[1, 2]]))] == [[[1, 2]]]
    here.wait()


def test_other_ranks_do_not_lead() -> None:
    assert not World(1, 2, torch.device("cpu")).leads
