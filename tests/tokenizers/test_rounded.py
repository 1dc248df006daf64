"""Channels rounded by themselves: against a search through all values, and the published rate of a Gaussian."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tilework.augment.embed import look_up
from tilework.core.errors import ConfigError
from tilework.store import Store, StoreWriter
from tilework.tokenizers import TeacherCodesConfig
from tilework.tokenizers.rounded import RoundedQuantiser, evenly_spaced
from tilework.tokenizers.teacher_codes import fit


def fitted(points: torch.Tensor, codes: int = 16, step: float = 0.85) -> RoundedQuantiser:
    made = RoundedQuantiser(codes, points.shape[1]).requires_grad_(False)
    made.embedding.weight.copy_(evenly_spaced(points, codes, step))
    return made


def normal(*shape: int) -> torch.Tensor:
    scale = torch.logspace(-3, 3, shape[-1])
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * scale + 2 * scale


def test_the_nearest_value_of_every_channel() -> None:
    """Oracle: the distance to every value."""
    points = normal(500, 7)
    made = fitted(points, 5)
    far = 3 * points[:50]  # beyond the outermost values too
    expected = (far[:, None] - made.codebook).abs().argmin(1)
    assert torch.equal(made.nearest(far), expected)
    assert torch.equal(made.values(expected), look_up(expected[:, :, None, None], made.codebook)[:, :, 0, 0])
    assert torch.equal(made.nearest(made.values(expected)), expected)


def test_rate_and_error_of_a_gaussian(tmp_path: object) -> None:
    """Entropy-coded uniform quantisation loses 0.25 bits to the bound R = log2(1 / D) / 2 (Gish & Pierce, 1968)."""
    points = normal(2000, 64)
    made = fitted(points)
    ids = made.nearest(points)
    error = float(((made.values(ids) - points).square().mean(0) / points.var(0)).mean())
    assert error == pytest.approx(0.85**2 / 12, rel=0.02)
    path = tmp_path / "x.tok"  # type: ignore[operator]
    with StoreWriter(path, made.codebook.numpy(), ["a"]) as writer:
        writer.add(ids[:, None, None].numpy().astype(np.int32), np.zeros(2000, np.int64), [str(i) for i in range(2000)])
    store = Store(path)
    bits = 8 * store.sizes["tokens"] / ids.numel()
    assert store.manifest.codec in ("rans", "rans-stack")
    assert bits == pytest.approx(np.log2(1 / error) / 2 + 0.25, abs=0.5)  # states and index of short records
    assert np.array_equal(store.batch(np.arange(9))[:, 0, 0], ids[:9].numpy())


def test_a_channel_that_never_changes_and_one_value_at_a_time() -> None:
    points = torch.cat([torch.full((9, 1), 3.0), normal(9, 1)], 1)
    made = fitted(points)
    assert torch.allclose(made.values(made.nearest(points))[:, 0], points[:, 0], atol=1e-5)


def test_as_codes_of_a_teacher() -> None:
    torch.manual_seed(0)
    config = TeacherCodesConfig(size=(64, 64), pool=2, code_dim=6, codes=16, quantiser="rounded")
    tokenizer = config.build(3, (64, 64), 0).eval()
    x = torch.rand(12, 3, 64, 64)
    fit(tokenizer, [x], torch.device("cpu"))
    ids, features = tokenizer.encode(x), tokenizer.features(x)
    assert ids.shape == (12, *tokenizer.grid((64, 64))) == (12, 1, 1, 6)
    spread = features.flatten(0, 2).std(0, correction=0)
    assert ((tokenizer.vectors(ids) - features).abs() <= 0.43 * spread + 1e-6).all()
    again = config.build(3, (64, 64), 0).with_codes(tokenizer.codebook)
    assert torch.equal(again.quantiser.nearest(features), ids)
    for bad in ({"step": 0.0}, {"step": float("nan")}, {"depth": 2}):
        with pytest.raises(ConfigError, match="channels that are rounded"):
            TeacherCodesConfig(quantiser="rounded", **bad).build(3, (224, 224), 0)
