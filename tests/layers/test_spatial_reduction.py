"""Attention to a coarser grid, straight from the paper: every key from its window, every query on its own."""

from __future__ import annotations

import pytest
import torch

from tilework.core.errors import ConfigError
from tilework.layers.spatial_reduction import SpatialReductionAttention


@pytest.mark.parametrize("reduction", [1, 2])
def test_equals_the_slow_way(reduction: int) -> None:
    """Formula written independently: timm has no PVT of the first version."""
    torch.manual_seed(0)
    module = SpatialReductionAttention(8, 2, (4, 6), reduction)
    for parameter in module.parameters():
        parameter.data.normal_(std=0.5)
    x, share = torch.randn(24, 8), torch.rand(24, 3)
    with torch.no_grad():
        y, mixed = module(x[None], share[None])
        fused, none = module(x[None])
        keys, labels = [], []
        for top in range(0, 4, reduction):
            for left in range(0, 6, reduction):
                window = [6 * r + c for r in range(top, top + reduction) for c in range(left, left + reduction)]
                key = x[window[0]]
                if reduction > 1:
                    kernel = module.sr.weight.flatten(2).permute(2, 0, 1)  # (places, D, D)
                    key = module.norm(sum(w @ x[i] for w, i in zip(kernel, window, strict=True)) + module.sr.bias)
                keys.append(module.kv(key))
                labels.append(share[window].mean(0))
        result, carried = [], []
        for query in module.q(x):
            heads, weights = [], []
            for h in (slice(0, 4), slice(4, 8)):
                scores = torch.stack([query[h] @ key[:8][h] / 2 for key in keys])
                weights.append(scores.softmax(0))
                heads.append(sum(w * key[8:][h] for w, key in zip(weights[-1], keys, strict=True)))
            result.append(module.proj(torch.cat(heads)))
            carried.append((weights[0] + weights[1]) / 2 @ torch.stack(labels))
    assert none is None
    assert torch.allclose(y[0], torch.stack(result), atol=1e-4)
    assert torch.allclose(fused, y, atol=1e-4)
    assert mixed is not None
    assert torch.allclose(mixed[0], torch.stack(carried), atol=1e-5)


def test_another_grid_is_that_of_a_module_built_for_it() -> None:
    module, other = (SpatialReductionAttention(8, 2, grid, 2) for grid in ((4, 6), (2, 12)))
    other.load_state_dict(module.state_dict())
    x, share = torch.randn(3, 24, 8), torch.rand(3, 24, 2)
    for found, wanted in zip(module(x, share, (2, 12)), other(x, share), strict=True):
        assert torch.equal(found, wanted)
    with pytest.raises(ConfigError, match="a map of 3x8 does not divide into windows of 2"):
        module(x, None, (3, 8))


@pytest.mark.parametrize(
    ("heads", "reduction", "words"),
    [(3, 1, "a width of 8 is no multiple of 3 heads"), (2, 4, "a map of 4x6 does not divide into windows of 4")],
)
def test_what_does_not_divide_is_refused(heads: int, reduction: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SpatialReductionAttention(8, heads, (4, 6), reduction)
