"""Embed: codes to code vectors."""

from __future__ import annotations

import pytest
import torch

from tilework.augment import Embed
from tilework.core.batch import Batch, Target
from tilework.core.errors import ConfigError

CODEBOOK = torch.randn(11, 3, generator=torch.Generator().manual_seed(0))


def make_batch(dtype: torch.dtype = torch.int32) -> Batch:
    ids = torch.randint(11, (2, 4, 5), dtype=dtype, generator=torch.Generator().manual_seed(1))
    return Batch(ids, Target.hard(torch.zeros(2, dtype=torch.int64)), torch.arange(2))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_equals_a_loop(dtype: torch.dtype) -> None:
    batch = make_batch(dtype)
    out = Embed().bind(CODEBOOK).apply(batch, None).x
    assert out.shape == (2, 3, 4, 5)
    for i in range(2):
        for row in range(4):
            for column in range(5):
                assert torch.equal(out[i, :, row, column], CODEBOOK[int(batch.x[i, row, column])])


def test_binding_leaves_the_original_unbound() -> None:
    embed = Embed()
    assert embed.bind(CODEBOOK).codebook is CODEBOOK
    assert embed.codebook is None


def test_without_codebook_it_refuses_to_bind() -> None:
    with pytest.raises(ConfigError, match="'embed' needs a codebook"):
        Embed().bind(None)


def test_unbound_it_refuses_to_run() -> None:
    with pytest.raises(ConfigError, match="'embed' was not given a codebook"):
        Embed().apply(make_batch(), None)
