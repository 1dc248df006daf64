"""Residual quantisation. Oracle: the greedy sum, vector by vector (RQ-VAE, eqs. 2-4)."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tilework.tokenizers.pyramid import PyramidQuantiser
from tilework.tokenizers.residual import ResidualQuantiser


def test_each_code_takes_what_is_left() -> None:
    torch.manual_seed(0)
    quantiser, features = ResidualQuantiser(7, 4, 3), torch.randn(2, 5, 4)
    ids = quantiser.nearest(features)
    assert ids.shape == (2, 5, 3)
    for vector, numbers in zip(features.view(-1, 4), ids.view(-1, 3).tolist(), strict=True):
        left = vector.clone()
        for depth, number in enumerate(numbers):
            distances = [(left - code).square().sum().item() for code in quantiser.codebook[7 * depth : 7 * depth + 7]]
            assert number == 7 * depth + min(range(7), key=distances.__getitem__)
            left = left - quantiser.codebook[number]
    torch.testing.assert_close(quantiser.sum(quantiser.codebook[ids]), quantiser(features).vectors)


def test_losses_count_every_partial_sum() -> None:
    torch.manual_seed(0)
    quantiser, features = ResidualQuantiser(5, 3, 2), torch.randn(6, 3, requires_grad=True)
    found = quantiser(features)
    one = quantiser.codebook[found.ids[:, 0]]
    two = one + quantiser.codebook[found.ids[:, 1]]
    expected = ((one - features).square().mean() + (two - features).square().mean()) / 2
    torch.testing.assert_close(found.codebook, expected)
    torch.testing.assert_close(found.commitment, expected)
    weight = torch.randn(6, 3)
    straight = torch.autograd.grad((found.vectors * weight).sum(), features, retain_graph=True)[0]
    torch.testing.assert_close(straight, weight)
    assert torch.autograd.grad(found.codebook, quantiser.embedding.weight)[0].abs().sum() > 0


def test_pyramid_of_one_scale_is_nearest_neighbour() -> None:
    """VAR's pyramid against published_tokenizers.Var is tested with the family; here its parts."""
    torch.manual_seed(0)
    quantiser, features = PyramidQuantiser(9, 4, (3,), 1), torch.randn(2, 3, 3, 4)
    torch.nn.init.normal_(quantiser.table)
    expected = (features[..., None, :] - quantiser.table).square().sum(-1).argmin(-1)
    assert torch.equal(quantiser.nearest(features), expected.flatten(1))
    code = quantiser.table[expected].permute(0, 3, 1, 2)
    phi = quantiser.convolutions[0]
    restored = 0.5 * code + 0.5 * F.conv2d(code, phi.weight, phi.bias, padding=1)  # type: ignore[arg-type]
    torch.testing.assert_close(quantiser.sum(quantiser.table[expected.flatten(1)]), restored.permute(0, 2, 3, 1))


def test_pyramid_trains() -> None:
    torch.manual_seed(0)
    quantiser, features = PyramidQuantiser(9, 4, (1, 2, 4)), torch.randn(2, 4, 4, 4, requires_grad=True)
    torch.nn.init.normal_(quantiser.table)
    found = quantiser(features)
    assert found.ids.shape == (2, 21)
    torch.testing.assert_close(found.vectors, quantiser.sum(quantiser.table[found.ids]))
    found.codebook.backward()
    assert quantiser.table.grad.abs().sum() > 0  # type: ignore[union-attr]


def test_published_convolutions_of_ten_scales() -> None:
    """What numpy's linspace(1/12, 11/12, 4) and argmin give; scales 3 and 8 lie half-way between two."""
    quantiser = PyramidQuantiser(3, 2, (1, 2, 3, 4, 5, 6, 8, 10, 13, 16))
    chosen = [list(quantiser.convolutions).index(quantiser._convolution(i)) for i in range(10)]
    assert chosen == sorted(chosen)
    assert [chosen[i] for i in (0, 1, 3, 4, 5, 6, 8, 9)] == [0, 0, 1, 1, 2, 2, 3, 3]
