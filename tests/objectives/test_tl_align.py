"""TL-Align: shares against whole label matrices of all classes, and what must hold whatever the weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from small_mixtures import CLASSES, COUNT, MIXINGS, PIXELS, SIDE, make_batch, network
from tilework.augment import MixToken, Mixup, PatchCutMix, TokenAdapt, apply_all
from tilework.augment.adapter import save_adapter
from tilework.core.batch import Batch, Target
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.data.score_map import ScoreMap
from tilework.evaluation.relevance import watched
from tilework.layers.stems import TokenStemConfig
from tilework.layers.token_adapt import TokenAdaptNetwork
from tilework.models import ResnetConfig, Vit
from tilework.objectives import Classify, TlAlignConfig, TlAlignTokenLabelConfig, TokenLabelConfig


def full(target: Target) -> Tensor:
    """The labels as rows of all classes."""
    return torch.zeros(len(target.ids), CLASSES).scatter_add_(1, target.ids, target.weight)


def matrix_form(model: Vit, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """Labels of all classes for every token, carried through the attention of every block; (B, K)."""
    assert batch.mix is not None
    with torch.no_grad(), watched(model) as seen:
        model(batch.x, mix=batch.mix)
    labels = nn.functional.one_hot(batch.target.ids[:, 0], CLASSES).float()
    labels = (1 - smoothing) * labels + smoothing / CLASSES  # (B, K)
    own = batch.mix.at(*model.grid).flatten(1)[..., None]  # (B, N, 1)
    y = own * labels[:, None] + (1 - own) * labels[batch.mix.partner][:, None]
    y = torch.cat([y.mean(1, keepdim=True), y], 1)  # (B, 1 + N, K)
    for attention in seen:
        y = (y + attention.mean(1) @ y / model.config.divisor) / (1 + 1 / model.config.divisor)
    return y[:, 0] if model.config.pool == "class" else y[:, 1:].mean(1)


@pytest.mark.parametrize("changes", [{}, {"pool": "mean"}, {"divisor": 2.0}, {"divisor": 3.0, "pool": "mean"}])
@pytest.mark.parametrize("name", MIXINGS)
def test_equals_the_matrix_form(name: str, changes: dict[str, Any]) -> None:
    model, batch = network(**changes), make_batch(MIXINGS[name])
    _, target = TlAlignConfig().build(model).answer(batch)
    assert torch.allclose(full(target), matrix_form(model, batch), atol=1e-6)
    assert torch.allclose(target.weight.sum(1), torch.ones(COUNT), atol=1e-6)
    if name != "mixup":
        assert (full(target) - full(batch.target)).abs().max() > 0.005, "not just the area"


def test_mixtures_through_token_adapt(tmp_path: Path) -> None:
    """Half of the batch is mixed on a map of twice the code grid: boxes, or everywhere; the rest as codes."""
    torch.manual_seed(0)
    codebook = torch.randn(30, 5)
    save_adapter(tmp_path / "adapt", TokenAdaptNetwork(5, width=16, heads=2), codebook, {"name": "x", "sha256": "0f"})
    adapt = TokenAdapt(adapter=str(tmp_path / "adapt"), size=(8, 8)).build(Codebook.of(codebook))
    ids, index = torch.randint(30, (COUNT, 10, 10)), torch.arange(COUNT)
    batch = apply_all([adapt], Batch(ids, Target.hard(index % CLASSES), index), Draws(3, 0, index))
    model = replace(network().config, stem=TokenStemConfig()).build(5, (8, 8), CLASSES).eval()
    with torch.no_grad():
        model.blocks.apply(lambda m: nn.init.normal_(m.weight, std=0.5) if isinstance(m, nn.Linear) else None)
    _, target = TlAlignConfig().build(model).answer(batch)
    assert torch.allclose(full(target), matrix_form(model, batch), atol=1e-6)
    assert (full(target) - full(batch.target)).abs().max() > 0.005


def test_smoothing_before_or_after_is_the_same() -> None:
    model, batch = network(), make_batch(MIXINGS["boxes"])
    objective = TlAlignConfig(smoothing=0.1).build(model)
    loss = objective(batch, Draws(0, 0, batch.index))["loss"]
    slow = -(matrix_form(model, batch, 0.1) * model(batch.x).logits.log_softmax(1)).sum(1).mean()
    assert torch.allclose(loss, slow, atol=1e-6)


def test_mixup_stays_as_it_is() -> None:
    batch = make_batch(Mixup())
    _, target = TlAlignConfig().build(network()).answer(batch)
    assert torch.allclose(target.weight, batch.target.weight, atol=1e-6)


def test_without_mixture_labels_are_whole() -> None:
    model, batch = network(), make_batch()
    objective = TlAlignConfig().build(model)
    assert objective.answer(batch)[1] is batch.target
    loss = objective(batch, Draws(0, 0, batch.index))["loss"]
    assert torch.equal(loss, Classify(model)(batch, Draws(0, 0, batch.index))["loss"])
    unmixed = make_batch(PatchCutMix(8, probability=0.0))
    assert torch.allclose(full(objective.answer(unmixed)[1]), torch.eye(CLASSES)[:COUNT], atol=1e-6)


def test_swapped_images_have_swapped_labels() -> None:
    model, batch = network(), make_batch(PatchCutMix(8))
    assert batch.mix is not None
    objective, mix = TlAlignConfig().build(model), batch.mix
    back = torch.empty_like(mix.partner)
    back[mix.partner] = torch.arange(COUNT)
    other = replace(mix, partner=back, own=1 - mix.own[back])  # the same pictures, seen from the partner
    swapped = Batch(batch.x[back], make_batch().target.mix(back, other.own.mean((1, 2))), batch.index, mix=other)
    first, second = objective.answer(batch)[1].weight, objective.answer(swapped)[1].weight
    assert torch.allclose(second[:, 0], 1 - first[back, 0], atol=1e-6)


def test_attention_to_oneself_keeps_the_area() -> None:
    model, batch = network(heads=1), make_batch(PatchCutMix(8))
    with torch.no_grad():
        for block in model.blocks:  # normalised tokens are as long as each other, so that none is nearer than itself
            block.attn.qkv.weight[:32] = 3000 * torch.eye(16).repeat(2, 1)
            block.attn.qkv.bias[:32] = 0
            for last in (block.attn.proj, block.mlp.fc2):
                last.weight.zero_()
                last.bias.zero_()
    _, target = TlAlignConfig().build(model).answer(batch)
    assert torch.allclose(target.weight, batch.target.weight, atol=1e-6)


def test_dropped_branches_keep_the_area() -> None:
    model, batch = network(drop_path=0.999), make_batch(PatchCutMix(8))
    for block in model.blocks:
        block.drop_path = 0.999
    torch.manual_seed(0)
    _, target = TlAlignConfig().build(model.train()).answer(batch)
    assert torch.allclose(target.weight, batch.target.weight, atol=1e-6)


def test_labels_carry_no_gradient_and_the_loss_does() -> None:
    model, batch = network().train(), make_batch(PatchCutMix(8))
    objective = TlAlignConfig(smoothing=0.1).build(model)
    _, target = objective.answer(batch)
    assert not target.weight.requires_grad
    objective(batch, Draws(0, 0, batch.index))["loss"].backward()
    given = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    out = model(batch.x)
    wanted = 0.9 * full(target) + 0.1 / CLASSES
    (-(wanted * out.logits.log_softmax(1)).sum(1).mean()).backward()
    assert all(torch.allclose(a, p.grad, atol=1e-5) for a, p in zip(given, model.parameters(), strict=True))


def test_labels_under_autocast() -> None:
    model, batch = network(), make_batch(PatchCutMix(8))
    objective = TlAlignConfig().build(model)
    with torch.autocast("cpu", torch.bfloat16):
        _, target = objective.answer(batch)
    assert target.weight.dtype == torch.float32
    assert torch.allclose(target.weight.sum(1), torch.ones(COUNT), atol=1e-6)
    assert torch.allclose(target.weight, objective.answer(batch)[1].weight, atol=0.02)


def test_code_maps() -> None:
    torch.manual_seed(0)
    model = replace(PIXELS, stem=TokenStemConfig()).build(5, (8, 8), CLASSES).eval()
    codes = torch.randn(COUNT, 5, 8, 8)
    batch = Batch(codes, Target.hard(torch.arange(COUNT)), torch.arange(COUNT))
    batch = apply_all([PatchCutMix(2)], batch, Draws(0, 0, batch.index))
    _, target = TlAlignConfig().build(model).answer(batch)
    assert torch.allclose(full(target), matrix_form(model, batch), atol=1e-6)


def test_with_token_labels_only_the_class_label_is_aligned() -> None:
    model = network(dense=True).train()
    ids = torch.arange(CLASSES).expand(COUNT, 4, 4, CLASSES)
    scores = torch.rand(COUNT, 4, 4, CLASSES, generator=torch.Generator().manual_seed(2)) / CLASSES
    maps = ScoreMap.of_scores(ids, scores.sort(-1, descending=True).values, CLASSES)
    batch = make_batch().changed(columns={"label_map": maps})
    batch = apply_all([MixToken((4, 4))], batch, Draws(3, 0, batch.index, step=5))
    draws = Draws(0, 0, batch.index)
    both, plain, aligned = (
        config.build(model)(batch, draws) for config in (TlAlignTokenLabelConfig(), TokenLabelConfig(), TlAlignConfig())
    )
    assert torch.equal(both["dense"], plain["dense"])
    assert torch.equal(both["class"], aligned["loss"])
    assert not torch.allclose(both["class"], plain["class"], atol=1e-4)
    with pytest.raises(ConfigError, match="no head for every token"):
        TlAlignTokenLabelConfig().build(network())


@pytest.mark.parametrize("config", [TlAlignConfig(), TlAlignTokenLabelConfig()])
def test_models_without_attention_are_refused(config: TlAlignConfig) -> None:
    with pytest.raises(ConfigError, match="Resnet cannot follow the sources"):
        config.build(ResnetConfig(18, width=16).build(3, (SIDE, SIDE), CLASSES))
