"""Embed: codes to code vectors."""

from __future__ import annotations

import pytest
import torch

from tilework.augment import Embed
from tilework.core.batch import Batch, Target
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError

CODEBOOK = torch.randn(11, 3, generator=torch.Generator().manual_seed(0))


def make_batch(dtype: torch.dtype = torch.int32) -> Batch:
    ids = torch.randint(11, (2, 4, 5), dtype=dtype, generator=torch.Generator().manual_seed(1))
    return Batch(ids, Target.hard(torch.zeros(2, dtype=torch.int64)), torch.arange(2))


def every_code() -> Batch:
    """One sample whose only row holds each code once."""
    return Batch(torch.arange(11).view(1, 1, 11), Target.hard(torch.zeros(1, dtype=torch.int64)), torch.arange(1))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_equals_a_loop(dtype: torch.dtype) -> None:
    batch = make_batch(dtype)
    out = Embed().build(Codebook.of(CODEBOOK)).apply(batch, None).x
    assert out.shape == (2, 3, 4, 5)
    for i in range(2):
        for row in range(4):
            for column in range(5):
                assert torch.equal(out[i, :, row, column], CODEBOOK[int(batch.x[i, row, column])])


def test_the_table_is_the_codebook() -> None:
    embed = Embed()
    assert torch.equal(embed.build(Codebook.of(CODEBOOK)).table, CODEBOOK)


def test_without_codebook_it_refuses_to_bind() -> None:
    with pytest.raises(ConfigError, match="'embed' needs a codebook"):
        Embed().build(None)


def test_standardised_channels_have_mean_zero_and_deviation_one() -> None:
    out = Embed(standardise=True).build(Codebook.of(CODEBOOK)).apply(every_code(), None).x[0, :, 0]  # (C, K)
    for channel in range(3):
        assert out[channel].mean().item() == pytest.approx(0, abs=1e-5)
        assert out[channel].std().item() == pytest.approx(1, rel=0.06)  # over K or K - 1 codes
        line = torch.stack([out[channel], CODEBOOK[:, channel]])
        assert torch.corrcoef(line)[0, 1].item() == pytest.approx(1, abs=1e-5)  # moved and scaled, no more


def test_standardising_keeps_the_codebook_of_the_data() -> None:
    before = CODEBOOK.clone()
    Embed(standardise=True).build(Codebook.of(CODEBOOK))
    assert torch.equal(CODEBOOK, before)


def test_constant_channel_is_standardised_to_zero() -> None:
    codebook = torch.cat([CODEBOOK[:, :2], torch.full((11, 1), 5.0)], 1)
    out = Embed(standardise=True).build(Codebook.of(codebook)).apply(every_code(), None).x
    assert torch.isfinite(out).all()
    assert out[0, 2].abs().max() < 1e-3


def test_single_code_can_be_standardised() -> None:
    batch = every_code().changed(x=torch.zeros(1, 2, 2, dtype=torch.int32))
    assert torch.isfinite(Embed(standardise=True).build(Codebook.of(CODEBOOK[:1])).apply(batch, None).x).all()
