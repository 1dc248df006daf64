"""Networks of senseless sizes are stopped while they are built, at once and without memory."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from tilework.models.without_memory import without_memory


def test_shapes_only() -> None:
    with without_memory(200):
        layer = nn.Linear(10, 10)
    assert layer.weight.is_meta
    assert not nn.Linear(2, 2).weight.is_meta


def test_a_network_of_very_many_layers_is_stopped_early() -> None:
    built: list[nn.Module] = []
    with pytest.raises(ValueError, match="more than 10,000 numbers"), without_memory(10_000):
        built.extend(nn.Linear(10, 10) for _ in range(10**9))
    assert len(built) == 90  # of 110 numbers each
    with pytest.raises(ValueError, match="20,000 tensors"), without_memory(10**12):
        built.extend(nn.LayerNorm(1) for _ in range(10**9))
    nn.Linear(200, 200)  # nothing is counted afterwards


def test_other_threads_are_not_counted() -> None:
    def other() -> None:
        torch.nn.Linear(100, 100)

    with without_memory(1000):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        nn.Linear(10, 10)
