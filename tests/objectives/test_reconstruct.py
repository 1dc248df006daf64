"""Tokenizer training: the codebook starts from data, idle codes move, gradients pass straight through."""

from __future__ import annotations

import pytest
import torch

from tilework.core.batch import Batch, Target
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.layers.stems import PatchStemConfig
from tilework.models import VitConfig
from tilework.models.model import ModelConfig
from tilework.objectives import Reconstruct, ReconstructConfig
from tilework.tokenizers import VitVqConfig, VitVqganConfig, VqganConfig, VqVaeConfig
from tilework.tokenizers.vit_vqgan import TransformerConfig


def objective(**settings: object) -> Reconstruct:
    torch.manual_seed(0)
    model = VitVqConfig(patch=4, codes=12, code_dim=4, width=16, depth=1, heads=2, cosine=True).build(3, (8, 8), 0)
    return ReconstructConfig(**{"warm_steps": 2, **settings}).build(model)


def batch() -> Batch:
    x = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    return Batch(x, Target.hard(torch.zeros(6, dtype=torch.int64)), torch.arange(6))


def at(step: int) -> Draws:
    return Draws(0, 0, torch.arange(6), step)


def test_the_warm_phase_is_a_plain_autoencoder() -> None:
    one = objective()
    codes = one.model.quantiser.table.clone()
    out = one(batch(), at(0))
    expected = (one.model.pixels(one.model.features(batch().x)) - batch().x).square().mean()
    torch.testing.assert_close(out["mse"], expected.detach())
    out["loss"].backward()
    assert all(p.grad is not None for p in one.parameters())
    assert torch.equal(one.model.quantiser.table, codes)


def test_codes_start_at_cluster_centres_of_the_features() -> None:
    one = objective()
    features = one.model.features(batch().x).detach().flatten(0, 2)
    one(batch(), at(2))
    closest = (features @ one.model.codebook.T).max(1).values
    assert closest.mean() > 0.95
    assert closest.min() > 0.8
    random = torch.nn.functional.normalize(torch.randn(12, 4), dim=1)
    assert closest.mean() > (features @ random.T).max(1).values.mean()


def test_loss_is_the_sum_of_its_parts() -> None:
    one = objective(commitment=0.5)
    one(batch(), at(2))
    out = one(batch(), at(3))
    features = one.model.features(batch().x)
    vectors = one.model.codebook[one.model.nearest(features)]
    distance = (features - vectors).square().mean()
    mse = (one.model.pixels(vectors) - batch().x).square().mean()
    torch.testing.assert_close(out["loss"], mse + 1.5 * distance)


def test_gradient_reaches_the_encoder_through_the_codes() -> None:
    one = objective(commitment=0.0)
    one(batch(), at(2))
    one(batch(), at(3))["loss"].backward()
    assert one.model.straight_in.weight.grad.abs().sum() > 0


def test_idle_codes_are_revived() -> None:
    one = objective(revive_every=5)
    one(batch(), at(2))
    with torch.no_grad():
        one.model.quantiser.table[3:] = -one.model.features(batch().x).flatten(0, 2).mean(0)  # far from everything
    one.usage.zero_()
    one(batch(), at(3))
    assert len(one.model.nearest(one.model.features(batch().x)).unique()) <= 4
    one(batch(), at(7))
    assert len(one.model.nearest(one.model.features(batch().x)).unique()) > 4


def test_score_is_psnr_of_each_image() -> None:
    one = objective()
    scores = one.score(one.model, batch())
    restored = one.model.decode(one.model.encode(batch().x))
    mse = (restored - batch().x).square().mean((1, 2, 3))
    torch.testing.assert_close(scores["psnr"], 10 * torch.log10(1 / mse))


def test_a_run_without_a_codebook_is_refused() -> None:
    ReconstructConfig(warm_steps=5).check(("cat",), 6)
    with pytest.raises(ConfigError, match="5 steps end before the codebook starts"):
        ReconstructConfig(warm_steps=5).check(("cat",), 5)


def test_a_classifier_is_refused() -> None:
    with pytest.raises(TypeError, match="not a tokenizer"):
        ReconstructConfig().build(VitConfig(width=8, heads=2, depth=1, stem=PatchStemConfig(4)).build(3, (8, 8), 2))


def test_absolute_error_instead_of_squares() -> None:
    one = objective(pixel_loss="l1", commitment=0.5)
    one(batch(), at(2))
    out = one(batch(), at(3))
    features = one.model.features(batch().x)
    vectors = one.model.codebook[one.model.nearest(features)]
    distance = (features - vectors).square().mean()
    error = (one.model.pixels(vectors) - batch().x).abs().mean()
    torch.testing.assert_close(out["loss"], error + 1.5 * distance)


@pytest.mark.parametrize(
    "config",
    [
        VqganConfig(32, (1, 1), 1, (), latent=8, codes=12, code_dim=6),
        VqganConfig(32, (1, 1), 1, (), latent=8, codes=12, code_dim=6, gumbel=True),
        VqVaeConfig(width=16, blocks=1, hidden=8, codes=12, code_dim=6),
        VitVqganConfig(4, (2, 2), 12, 6, TransformerConfig(32, 1, 1, 32), TransformerConfig(32, 1, 1, 32)),
    ],
    ids=["vqgan", "gumbel", "vq_vae", "vit_vqgan"],
)
def test_every_tokenizer_can_be_trained(config: ModelConfig) -> None:
    torch.manual_seed(0)
    one = ReconstructConfig(revive_every=2).build(config.build(3, (8, 8), 0))
    optimiser = torch.optim.Adam([p for p in one.parameters() if p.requires_grad], 2e-3)
    losses = []
    for step in range(60):
        optimiser.zero_grad()
        out = one(batch(), at(step))
        out["loss"].backward()
        if step == 0:
            assert all(p.grad is not None for p in one.parameters() if p.requires_grad)
        optimiser.step()
        losses.append(out["mse"].item())
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_a_perceptual_loss_needs_weight_and_file() -> None:
    for settings in ({"perceptual": 0.1}, {"perceptual_weights": "x.safetensors"}):
        with pytest.raises(ConfigError, match="needs both"):
            ReconstructConfig(**settings).check(("cat",), 6)  # type: ignore[arg-type]
