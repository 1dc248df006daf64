"""Finite scalar quantisation. Oracle: the paper's listing, channel by channel (tests/published_tokenizers.py)."""

from __future__ import annotations

import pytest
import torch

import published_tokenizers as published
from tilework.core.errors import ConfigError
from tilework.tokenizers.fsq import FsqQuantiser


@pytest.mark.parametrize("levels", [(8, 5, 5, 5), (2, 3), (7, 5, 5, 5, 5), (8, 6, 5)])
def test_codes_are_those_of_the_paper(levels: tuple[int, ...]) -> None:
    quantiser = FsqQuantiser(levels)
    features = 3 * torch.randn(4, 9, len(levels), generator=torch.Generator().manual_seed(0))
    ids, vectors = published.slow_fsq(features, levels)
    assert torch.equal(quantiser.nearest(features), ids)
    torch.testing.assert_close(quantiser.codebook[ids], vectors)
    found = quantiser(features)
    assert torch.equal(found.ids, ids)
    torch.testing.assert_close(found.vectors, vectors)


def test_the_codebook_is_every_combination_once() -> None:
    book = FsqQuantiser((8, 5, 5, 5)).codebook
    assert book.shape == (1000, 4)
    assert len(book.unique(dim=0)) == 1000
    assert book[:, 0].unique().tolist() == [-1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75]
    assert book[:, 1].unique().tolist() == [-1, -0.5, 0, 0.5, 1]
    far = torch.tensor([[-1.0], [1.0]]).expand(2, 4) * 50
    assert FsqQuantiser((8, 5, 5, 5)).nearest(far).tolist() == [0, 999]


def test_gradients_pass_as_through_the_bound() -> None:
    quantiser = FsqQuantiser((4, 5))
    features = torch.randn(6, 2, requires_grad=True)
    weight = torch.randn(6, 2)
    straight = torch.autograd.grad((quantiser(features).vectors * weight).sum(), features)[0]
    smooth = torch.autograd.grad((quantiser.bound(features) / quantiser.width * weight).sum(), features)[0]
    torch.testing.assert_close(straight, smooth)


def test_some_codes_only() -> None:
    quantiser, some = FsqQuantiser((4, 5)), torch.tensor([3, 11, 19])
    features = torch.randn(20, 2)
    vectors = quantiser.bound(features) / quantiser.width
    assert torch.equal(quantiser.nearest_of(features, some), published.closest(vectors, quantiser.codebook[some]))


@pytest.mark.parametrize("levels", [(), (5, 1), (2000, 2000)])
def test_impossible_levels_are_refused(levels: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError):
        FsqQuantiser(levels)
    assert FsqQuantiser((2, 2)).state_dict() == {}  # nothing to keep on disk
