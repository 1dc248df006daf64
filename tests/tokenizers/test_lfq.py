"""Lookup-free quantisation. Oracle: signs to bits one by one, entropies over all corners (MAGVIT-v2, eqs. 3-5)."""

from __future__ import annotations

import pytest
import torch

from tilework.core.errors import ConfigError
from tilework.tokenizers.lfq import LfqQuantiser


def test_signs_are_bits() -> None:
    quantiser, features = LfqQuantiser(5), torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    ids = quantiser.nearest(features)
    for vector, number in zip(features.view(-1, 5).tolist(), ids.flatten().tolist(), strict=True):
        assert number == sum(2**bit for bit, value in enumerate(vector) if value > 0)
    torch.testing.assert_close(quantiser.codebook[ids], features.sign())
    nearest = (features[..., None, :] - quantiser.codebook).square().sum(-1).argmin(-1)
    assert torch.equal(ids, nearest)  # the corner of the cube that lies nearest
    assert quantiser.nearest(torch.zeros(1, 5)).item() == 0  # zero is not above zero
    assert quantiser.state_dict() == {}


def test_losses_and_gradients() -> None:
    quantiser = LfqQuantiser(3, entropy=0.7)
    features = torch.randn(8, 3, requires_grad=True)
    found = quantiser(features)
    p = (-(features[:, None] - quantiser.codebook).square().sum(-1)).softmax(-1)  # (8, K), over all corners
    sure = -(p * p.log()).sum(-1).mean()
    bits = (quantiser.codebook > 0).float()
    mean = p.mean(0) @ bits  # how often each bit is up
    even = -(mean * mean.log() + (1 - mean) * (1 - mean).log()).sum()
    torch.testing.assert_close(found.codebook, 0.7 * (sure - even))
    torch.testing.assert_close(found.commitment, (features - features.sign()).square().mean())
    weight = torch.randn(8, 3)
    torch.testing.assert_close(torch.autograd.grad((found.vectors * weight).sum(), features)[0], weight)


def test_sizes() -> None:
    assert LfqQuantiser(18).codebook.shape == (262144, 18)
    for bits in (0, 21, 64):
        with pytest.raises(ConfigError):
            LfqQuantiser(bits)
