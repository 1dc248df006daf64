"""Token labelling and ReLabel against plain formulas; MixToken: labels move or predictions go back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.augment import MixToken, apply_all
from tilework.core.batch import Batch, Target
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.data.score_map import ScoreMap
from tilework.layers.stems import PatchStemConfig
from tilework.models import Vit, VitConfig
from tilework.objectives import (
    ClassifyConfig,
    RelabelConfig,
    TlAlignTokenLabelConfig,
    TokenLabelConfig,
    soft_cross_entropy,
)

CLASSES = 7
CONFIG = VitConfig(width=16, depth=2, heads=2, dense=True, stem=PatchStemConfig(8))


def network() -> Vit:
    torch.manual_seed(0)
    model = CONFIG.build(3, (32, 32), CLASSES)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def make_batch(count: int = 4) -> Batch:
    generator = torch.Generator().manual_seed(1)
    ids = torch.rand(count, 4, 4, CLASSES, generator=generator).argsort(-1)[..., :3]
    scores = torch.rand(count, 4, 4, 3, generator=generator).sort(-1, descending=True).values / 3
    x = torch.randn(count, 3, 32, 32, generator=generator)
    columns = {"label_map": ScoreMap.of_scores(ids, scores, CLASSES)}
    return Batch(x, Target.hard(torch.arange(count) % CLASSES), torch.arange(count), columns)


def soft(target: Target) -> Tensor:
    found = torch.zeros(*target.ids.shape[:-1], CLASSES).scatter_add_(-1, target.ids, target.weight)
    return found if target.spread is None else found + target.spread.sum(-1, keepdim=True) / CLASSES


def every_class(batch: Batch) -> Tensor:
    """What the maps say of each class at each place, (B, 16, CLASSES)."""
    maps = batch.columns["label_map"]
    assert isinstance(maps, ScoreMap)
    named = torch.zeros(len(batch.x), 16, CLASSES).scatter_add_(2, maps.ids.flatten(1, 2), maps.weight.flatten(1, 2))
    return named + maps.spread.flatten(1)[..., None] / CLASSES


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    labels = (1 - smoothing) * labels + smoothing / CLASSES
    return -(labels * logits.log_softmax(-1)).sum(-1)


def test_loss_is_the_weighted_sum_of_both_heads() -> None:
    batch, model = make_batch(), network()
    objective = TokenLabelConfig(smoothing=0.1, class_weight=0.7, dense_weight=0.3).build(model).train()
    out = objective(batch, Draws(0, 0, batch.index))
    said = model(batch.x)
    dense = every_class(batch)
    assert (dense.amax(-1) < 0.4).all(), "doubtful maps"
    assert torch.allclose(dense.sum(-1), torch.ones(4, 16), atol=1e-6)
    whole = cross_entropy(said.logits, soft(batch.target), 0.1).mean()
    tokens = cross_entropy(said.dense, dense, 0.1).mean()
    assert torch.allclose(out["class"], whole, atol=1e-5)
    assert torch.allclose(out["dense"], tokens, atol=1e-5)
    assert torch.allclose(out["loss"], 0.7 * whole + 0.3 * tokens, atol=1e-5)
    out["loss"].backward()
    assert all(p.grad is not None for p in model.parameters())


def test_defaults_are_one_and_a_half() -> None:
    assert (TokenLabelConfig().class_weight, TokenLabelConfig().dense_weight) == (1.0, 0.5)


@pytest.mark.parametrize("seed", range(4))
def test_moving_labels_or_pasting_predictions_back_is_the_same(seed: int) -> None:
    batch, model = make_batch(), network()
    objective = TokenLabelConfig(smoothing=0.0).build(model).train()
    draws = Draws(seed, 0, batch.index, step=seed)
    mixed = apply_all([MixToken((4, 4))], batch, draws)
    assert mixed.mix is not None
    found = objective(mixed, draws)
    said = model(batch.x, mix=mixed.mix)
    maps = batch.columns["label_map"]
    assert isinstance(maps, ScoreMap)
    plain = soft(maps.target(4, 4))
    back = said.dense.flip(0)  # predictions of the pasted tokens return to their own image
    own = mixed.mix.own.flatten(1)
    loss = (own * cross_entropy(said.dense, plain, 0) + (1 - own.flip(0)) * cross_entropy(back, plain, 0)).sum() / 64
    assert torch.allclose(found["dense"], loss, atol=1e-6)
    share = float(own[0].mean())
    labels = share * soft(batch.target) + (1 - share) * soft(batch.target).flip(0)
    assert torch.allclose(found["class"], cross_entropy(said.logits, labels, 0).mean(), atol=1e-6)


def test_relabel_is_the_pooled_map() -> None:
    batch, model = make_batch(), network()
    out = RelabelConfig(smoothing=0.0).build(model).train()(batch, Draws(0, 0, batch.index))
    pooled = every_class(batch).mean(1)
    assert torch.allclose(out["loss"], cross_entropy(model(batch.x).logits, pooled, 0).mean(), atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_the_class_may_be_taught_by_the_pooled_map_as_published(seed: int) -> None:
    batch, model = make_batch(), network()
    draws = Draws(seed, 0, batch.index, step=seed)
    mixed = apply_all([MixToken((4, 4))], batch, draws)
    assert mixed.mix is not None
    found = TokenLabelConfig(smoothing=0.1, dense_weight=1.0, class_target="map").build(model).train()(mixed, draws)
    pooled, share = every_class(batch).mean(1), float(mixed.mix.own[0].mean())
    labels = share * pooled + (1 - share) * pooled.flip(0)
    wanted = cross_entropy(model(batch.x, mix=mixed.mix).logits, labels, 0.1).mean()
    assert torch.allclose(found["class"], wanted, atol=1e-5)
    assert torch.allclose(found["loss"], wanted + found["dense"], atol=1e-5)
    with pytest.raises(ValueError, match="must be label or map"):
        TokenLabelConfig(class_target="other")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not their maps: set class_target=label"):
        TlAlignTokenLabelConfig(class_target="map").build(model)


def half_filled(batch: Batch) -> Batch:
    """The right half of the first image is filled, and everything of the second."""
    shift = torch.eye(2, 3).repeat(len(batch.x), 1, 1)
    shift[0, 0, 2], shift[1, 0, 2] = 1.0, 3.0
    columns = {name: column.warp(shift, (32, 32), filled=True) for name, column in batch.columns.items()}
    return batch.changed(columns=columns)


def test_filled_tokens_teach_nothing() -> None:
    batch, model = make_batch(), network()
    out = TokenLabelConfig(smoothing=0.1).build(model).train()(half_filled(batch), Draws(0, 0, batch.index))
    shown = torch.ones(4, 4, 4)
    shown[0, :, 2:], shown[1] = 0, 0
    labels = every_class(batch).view(4, 4, 4, CLASSES)
    labels[0] = labels[0].roll(-2, 1)  # the left half shows what was on the right
    loss = cross_entropy(model(batch.x).dense, labels.flatten(1, 2), 0.1).view(4, 4, 4)
    assert torch.allclose(out["dense"], (loss * shown).sum() / shown.sum(), atol=1e-5)
    everything = batch.changed(columns={"label_map": half_filled(batch).columns["label_map"].rows(slice(1, 2))})
    alone = replace(everything, x=batch.x[1:2], target=Target.hard(torch.tensor([1])), index=batch.index[1:2])
    found = TokenLabelConfig().build(model).train()(alone, Draws(0, 0, alone.index))
    assert found["dense"] == 0, "no token has a label"


def test_relabel_pools_what_is_shown() -> None:
    batch, model = make_batch(), network()
    out = RelabelConfig(smoothing=0.1).build(model).train()(half_filled(batch), Draws(0, 0, batch.index))
    labels = every_class(batch)
    pooled = labels.mean(1)
    pooled[0] = labels[0].view(4, 4, CLASSES)[:, 2:].mean((0, 1))
    loss = cross_entropy(model(batch.x).logits, pooled, 0.1)
    assert torch.allclose(out["loss"], (loss[0] + loss[2] + loss[3]) / 4, atol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_labels_with_doubt_against_full_vectors(smoothing: float) -> None:
    """Mixed, reweighed, on a device and cut to rows; oracle: torch's cross-entropy with probabilities."""
    generator = torch.Generator().manual_seed(4)
    weight = torch.rand(4, 3, generator=generator) / 3
    target = Target(torch.randint(0, CLASSES, (4, 3), generator=generator), weight, 1 - weight.sum(1, keepdim=True))
    logits, partner = torch.randn(4, CLASSES, generator=generator), torch.tensor([3, 2, 1, 0])
    own, new = torch.rand(4, generator=generator), torch.rand(4, 1, generator=generator)
    plain = soft(target)
    mixed = target.mix(partner, own)
    again = mixed.reweigh(torch.cat([new, 1 - new], 1))
    for one, labels in (
        (target, plain),
        (mixed, own[:, None] * plain + (1 - own[:, None]) * plain[partner]),
        (again, new * plain + (1 - new) * plain[partner]),
        (again.to(torch.device("cpu")).each(lambda part: part[1:3]), (new * plain + (1 - new) * plain[partner])[1:3]),
    ):
        some = logits[: len(labels)]
        expected = F.cross_entropy(some, labels, reduction="none", label_smoothing=smoothing)
        assert torch.allclose(soft_cross_entropy(some, one, smoothing), expected, atol=1e-5)
        assert torch.allclose(one.mass, torch.ones(len(labels)), atol=1e-6)


@pytest.mark.parametrize("config", [TokenLabelConfig, RelabelConfig])
def test_validation_is_that_of_classification(config: type[ClassifyConfig]) -> None:
    """Label maps are needed to train, not to be judged."""
    assert config.task == replace(ClassifyConfig.task, columns=("label_map",))


def test_what_is_missing_is_said() -> None:
    batch = make_batch()
    with pytest.raises(ConfigError, match="annotate"):
        TokenLabelConfig().build(network())(batch.changed(columns={}), Draws(0, 0, batch.index))
    with pytest.raises(ConfigError, match=r"model\.dense"):
        TokenLabelConfig().build(VitConfig(width=16, depth=1, heads=2, stem=PatchStemConfig(8)).build(3, (32, 32), 3))
