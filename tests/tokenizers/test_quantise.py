"""Quantisers: losses, straight-through gradients, Gumbel's choice. Oracle: the formulas written out."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tilework.tokenizers.quantise import GumbelQuantiser, NearestQuantiser


@pytest.mark.parametrize("cosine", [False, True])
def test_nearest_losses_and_gradients(cosine: bool) -> None:
    torch.manual_seed(0)
    quantiser = NearestQuantiser(7, 4, "cosine" if cosine else "distance")
    torch.nn.init.normal_(quantiser.table)
    features = torch.randn(2, 3, 3, 4, requires_grad=True)
    found = quantiser(features)
    x = F.normalize(features, dim=-1) if cosine else features
    book = F.normalize(quantiser.table, dim=1) if cosine else quantiser.table
    distances = (x[..., None, :] - book).square().sum(-1)
    assert torch.equal(found.ids, distances.argmin(-1))
    expected = (x - book[found.ids]).square().mean()
    torch.testing.assert_close(found.codebook, expected)
    torch.testing.assert_close(found.commitment, expected)
    torch.testing.assert_close(found.vectors, book[found.ids])
    weight = torch.randn(found.vectors.shape)
    straight = torch.autograd.grad((found.vectors * weight).sum(), features, retain_graph=True)[0]
    torch.testing.assert_close(straight, torch.autograd.grad((x * weight).sum(), features, retain_graph=True)[0])
    assert torch.autograd.grad(found.codebook, features, retain_graph=True, allow_unused=True)[0] is None
    assert torch.autograd.grad(found.commitment, quantiser.table, allow_unused=True)[0] is None


def test_gumbel_chooses_the_likeliest_and_learns() -> None:
    torch.manual_seed(0)
    quantiser = GumbelQuantiser(6, 3, 5)
    features = torch.randn(2, 2, 2, 5, requires_grad=True)
    logits = torch.einsum("bhwl,kl->bhwk", features, quantiser.proj.weight[:, :, 0, 0]) + quantiser.proj.bias
    assert torch.equal(quantiser.nearest(features), logits.argmax(-1))
    found = quantiser(features)
    torch.testing.assert_close(found.vectors, quantiser.codebook[found.ids])
    p = logits.softmax(-1)
    torch.testing.assert_close(found.codebook, 5e-4 * (p * (6 * p).log()).sum(-1).mean(), rtol=1e-4, atol=1e-9)
    found.vectors.sum().backward()
    assert quantiser.proj.weight.grad.abs().sum() > 0
    assert features.grad.abs().sum() > 0


def test_gumbel_draws_in_proportion() -> None:
    torch.manual_seed(0)
    quantiser = GumbelQuantiser(3, 2, 3)
    with torch.no_grad():
        quantiser.proj.weight.copy_(torch.eye(3)[:, :, None, None])
        quantiser.proj.bias.zero_()
    p = torch.tensor([0.5, 0.3, 0.2])
    ids = quantiser(p.log().expand(20000, 3)).ids
    assert torch.allclose(torch.bincount(ids) / 20000, p, atol=0.015)
