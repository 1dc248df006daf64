"""TransMix against its formula with whole attention matrices; uniform attention gives the area."""

from __future__ import annotations

import pytest
import torch

from small_mixtures import CLASSES, COUNT, MIXINGS, SIDE, make_batch, network
from tilework.augment import PatchCutMix
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.evaluation.relevance import watched
from tilework.models import ResnetConfig
from tilework.objectives import Classify, TransMixConfig


@pytest.mark.parametrize("name", MIXINGS)
def test_equals_the_formula(name: str) -> None:
    model, batch = network(), make_batch(MIXINGS[name])
    assert batch.mix is not None
    _, target = TransMixConfig().build(model).answer(batch)
    with torch.no_grad(), watched(model) as seen:
        model(batch.x, mix=batch.mix)
    look = seen[-1].mean(1)[:, 0, 1:]  # (B, N)
    own = batch.mix.at(*model.grid).flatten(1)
    for i in range(COUNT):
        inside = float((look[i] * own[i]).sum() / look[i].sum())
        share = (inside + float(batch.mix.own[i].mean())) / 2
        assert target.weight[i].tolist() == pytest.approx([share, 1 - share], abs=1e-6)
    assert torch.equal(target.ids, batch.target.ids)


def test_uniform_attention_gives_the_area() -> None:
    model, batch = network(), make_batch(PatchCutMix(8))
    with torch.no_grad():
        model.blocks[-1].attn.qkv.weight[:32] = 0
        model.blocks[-1].attn.qkv.bias[:32] = 0
    _, target = TransMixConfig().build(model).answer(batch)
    assert torch.allclose(target.weight, batch.target.weight, atol=1e-6)


def test_without_mixture_it_is_classification() -> None:
    model, batch = network(), make_batch()
    draws = Draws(0, 0, batch.index)
    assert torch.equal(TransMixConfig().build(model)(batch, draws)["loss"], Classify(model, 0.1)(batch, draws)["loss"])


def test_nothing_is_left_behind() -> None:
    model, batch = network(), make_batch(PatchCutMix(8))
    objective = TransMixConfig().build(model)
    loss = objective(batch, Draws(0, 0, batch.index))["loss"]
    loss.backward()
    assert all(block.attn.looks is None for block in model.blocks)
    assert list(dict(objective.named_parameters())) == [f"model.{name}" for name, _ in model.named_parameters()]


def test_models_without_a_class_token_to_watch_are_refused() -> None:
    for model in (network(pool="mean"), ResnetConfig(18, width=16).build(3, (SIDE, SIDE), CLASSES)):
        with pytest.raises(ConfigError, match="reads the class token"):
            TransMixConfig().build(model)
