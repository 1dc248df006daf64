"""Codes through vectors to codes: the least distance by a loop, what steps do between, what a model then sees."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tilework.augment import (
    CutMix,
    Embed,
    EmbeddingNoise,
    Flip,
    RandomResizedCrop,
    Requantise,
    TokenColour,
    apply_all,
    build_all,
    output_shape,
    requantise,
)
from tilework.augment.requantise import nearest_codes
from tilework.core.batch import Batch, Shape, Target
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws

CODES, DIM = 60, 8


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_batch(count: int = 10, dtype: torch.dtype = torch.int32) -> Batch:
    ids = torch.randint(CODES, (count, 8, 6), generator=torch.Generator().manual_seed(1)).to(dtype)
    return Batch(ids, Target.hard(torch.arange(count)), torch.arange(count))


@pytest.mark.parametrize("at_once", [1, 100, 1 << 20])
def test_nearest_is_the_least_distance(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requantise, "AT_ONCE", at_once)
    x, vectors = noise(2, DIM, 3, 4), noise(CODES, DIM, seed=1)
    found = nearest_codes(x, vectors)
    for sample in range(2):
        for row in range(3):
            for column in range(4):
                distance = [float((x[sample, :, row, column] - vector).square().sum()) for vector in vectors]
                assert found[sample, row, column] == min(range(CODES), key=distance.__getitem__)
    assert nearest_codes(x[:0], vectors).shape == (0, 3, 4)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_without_steps_codes_stay(dtype: torch.dtype, scale: float) -> None:
    """Also beside codes of the same direction and another length, and whatever a model learnt."""
    vectors = scale * noise(CODES // 2, DIM)
    book = Codebook.of(torch.cat([vectors, 2 * vectors]), noise(CODES, DIM, seed=3))
    batch = make_batch(dtype=dtype)
    out = apply_all(build_all([Requantise()], book), batch, Draws(0, 0, batch.index))
    assert torch.equal(out.x, batch.x)
    assert out.x.dtype == dtype


def test_steps_are_those_of_the_tokenizers_vectors() -> None:
    book = Codebook.of(noise(CODES, DIM), noise(CODES, DIM, seed=3))
    batch, steps = make_batch(), (RandomResizedCrop((4, 5)), TokenColour(0.5, 0.2), Flip(), CutMix(1.0))
    torch.manual_seed(0)
    out = apply_all(build_all([Requantise(steps)], book), batch, Draws(0, 0, batch.index))
    torch.manual_seed(0)
    by_hand = apply_all(build_all([Embed(), *steps], book.with_learnt(None)), batch, Draws(0, 0, batch.index))
    assert torch.equal(out.x.long(), nearest_codes(by_hand.x, noise(CODES, DIM)))
    assert torch.equal(out.target.weight, by_hand.target.weight)
    assert out.mix is not None
    assert out.deviation is None


def test_what_a_model_sees_stays_near_the_codes() -> None:
    """Noise of twice the variance of the codes leaves less than half of that: as many codes as there are, no more."""
    book = Codebook.of(noise(391, 32))
    ids = torch.randint(391, (64, 8, 8), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
    batch = Batch(ids, Target.hard(torch.arange(64)), torch.arange(64))
    torch.manual_seed(0)
    plain = apply_all(build_all([Embed(), EmbeddingNoise(1.0)], book), batch, Draws(0, 0, batch.index)).x
    torch.manual_seed(0)
    codes = apply_all(build_all([Requantise((EmbeddingNoise(1.0),))], book), batch, Draws(0, 0, batch.index)).x
    clean = torch.from_numpy(book.vectors)[ids.long()].permute(0, 3, 1, 2)
    seen = torch.from_numpy(book.vectors)[codes.long()].permute(0, 3, 1, 2)
    assert (plain - clean).square().mean() / clean.var() == pytest.approx(2.0, abs=0.1)
    assert (seen - clean).square().mean() / clean.var() < 1.0


def test_its_output_is_codes_on_the_grid_of_its_steps() -> None:
    shape = Shape("ids", DIM, (8, 6))
    assert output_shape([Requantise((RandomResizedCrop((4, 5)),))], shape) == Shape("ids", DIM, (4, 5))


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="'requantise' takes one code at a position, and these data have several"):
        output_shape([Requantise()], Shape("stacks", DIM, (8, 6)))
    with pytest.raises(ConfigError, match="'embed' takes ids or stacks but gets map"):
        output_shape([Requantise((Embed(),))], Shape("ids", DIM, (8, 6)))
    with pytest.raises(ConfigError, match="needs code vectors"):
        Requantise().build(Codebook.of(torch.zeros(4, 0)))
