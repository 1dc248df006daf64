"""The linear classifier of code vectors: a layer on the standardised mean, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from tilework.core.errors import ConfigError
from tilework.models import LinearConfig


def test_it_is_one_layer_on_the_standardised_mean() -> None:
    torch.manual_seed(0)
    model, x = LinearConfig().build(6, (3, 3), 4), torch.randn(8, 6, 3, 3)
    torch.nn.init.normal_(model.head.weight)  # type: ignore[arg-type]
    mean = x.mean((2, 3))
    expected = (mean - mean.mean(0)) / (mean.var(0, correction=0) + 1e-5).sqrt() @ model.head.weight.T  # type: ignore[operator]
    torch.testing.assert_close(model(x).logits, expected, rtol=1e-4, atol=1e-4)
    out = model.eval()(x)
    torch.testing.assert_close(model.token_logits(out).mean(1), out.logits, rtol=1e-4, atol=1e-4)
    assert model(torch.randn(2, 6, 5, 4)).grid == (5, 4)


def test_it_has_no_blocks() -> None:
    with pytest.raises(ConfigError, match="use a ViT"):
        LinearConfig().build(6, (3, 3), 4)(torch.zeros(2, 6, 3, 3), track=True)


def test_a_batch_of_one_image_is_refused_in_training_only() -> None:
    model = LinearConfig().build(6, (3, 3), 4)
    with pytest.raises(ConfigError, match=r"fit\.batch=2"):
        model(torch.zeros(1, 6, 3, 3))
    assert model.eval()(torch.zeros(1, 6, 3, 3)).logits.shape == (1, 4)
