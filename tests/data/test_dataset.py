"""The map-style data set under torch's own loader, with workers started either way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from small_data import write_store
from tilework.data import TokenDataset
from tilework.store import Store, StoreWriter


def test_samples_are_codes_and_labels(store: Path) -> None:
    data, tokens = TokenDataset(store), Store(store)
    assert len(data) == 48
    ids, label = data[5]
    assert ids.dtype == torch.int64
    assert np.array_equal(ids.numpy(), tokens[5])
    assert label == tokens.column("label")[5]
    assert torch.equal(data[-1][0], data[47][0])
    with pytest.raises(IndexError):
        data[48]


def test_every_view_is_a_sample(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 9, (4, 3, 2, 2))
    with StoreWriter(tmp_path / "v.tok", np.zeros((9, 2)), ["a", "b"], views=3) as writer:
        writer.add(ids, [0, 1, 0, 1], list("abcd"))
    data = TokenDataset(tmp_path / "v.tok")
    assert len(data) == 12
    assert np.array_equal(np.stack([data[i][0] for i in range(12)]), ids.reshape(12, 2, 2))
    assert [data[i][1] for i in range(12)] == [0] * 3 + [1] * 3 + [0] * 3 + [1] * 3


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_read_the_same(tmp_path: Path, start: str) -> None:
    data = TokenDataset(write_store(tmp_path / "a.tok", count=20))
    _ = data[0]  # mapped here before the workers start
    alone = [x for x, _ in DataLoader(data, batch_size=6)]
    shared = [x for x, _ in DataLoader(data, batch_size=6, num_workers=2, multiprocessing_context=start)]
    assert all(torch.equal(a, b) for a, b in zip(alone, shared, strict=True))
