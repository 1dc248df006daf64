"""Ratios by similarity against loops, and by labels against the objectives."""

from __future__ import annotations

import pytest
import torch

from small_mixtures import CLASSES, COUNT, SIDE, make_batch, network
from tilework.augment import MixToken, PatchCutMix, apply_all
from tilework.core.batch import Mix
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.evaluation.mixing_ratio import MixingRatio, mixing_ratios, similarity_ratio
from tilework.models import ResnetConfig, SwinConfig
from tilework.objectives import TlAlignConfig, TransMixConfig


def test_similarity_equals_a_loop() -> None:
    torch.manual_seed(0)
    mixed, first, second = (torch.randn(2, 5, 7) for _ in range(3))
    found = similarity_ratio(mixed, first, second)
    for b in range(2):
        for i in range(5):
            best = [
                max(torch.cosine_similarity(mixed[b, i], one[b, j], 0) for j in range(5)) for one in (first, second)
            ]
            assert torch.allclose(found[b, i], torch.stack(best).softmax(0)[0], atol=1e-6)


def test_a_token_of_one_image_alone() -> None:
    first, second = torch.eye(4)[None, :2], torch.eye(4)[None, 2:]
    assert similarity_ratio(first, first, second)[0].tolist() == pytest.approx([1 / (1 + torch.e**-1)] * 2)
    assert similarity_ratio(second, first, second)[0].tolist() == pytest.approx([1 - 1 / (1 + torch.e**-1)] * 2)


@pytest.mark.parametrize("mixing", [PatchCutMix(8), MixToken((4, 4))])
@pytest.mark.parametrize("pool", ["class", "mean"])
def test_labels_are_those_of_the_objectives(mixing: PatchCutMix | MixToken, pool: str) -> None:
    model, plain = network(pool=pool), make_batch()
    batch = apply_all([mixing], plain, Draws(3, 0, plain.index, step=5))
    assert batch.mix is not None
    found = mixing_ratios(model, plain.x, batch.mix)
    assert [share.shape for share in (*found.similarity, *found.aligned)] == [
        (COUNT, 17 if pool == "class" else 16)
    ] * 8
    assert torch.allclose(found.area, batch.target.weight[:, 0])
    assert torch.allclose(found.read, TlAlignConfig().build(model).answer(batch)[1].weight[:, 0], atol=1e-6)
    assert torch.allclose(found.of_image(found.aligned)[-1], found.read, atol=1e-6)
    if pool == "class":
        assert found.trans_mix is not None
        weight = TransMixConfig().build(model).answer(batch)[1].weight[:, 0]
        assert torch.allclose(found.trans_mix, weight, atol=1e-6)
    else:
        assert found.trans_mix is None
        assert torch.allclose(found.last_map((4, 4)).mean((1, 2)), found.read, atol=1e-6)
    assert not any(block._forward_hooks for block in model.blocks)


def test_a_mixture_with_oneself_is_half_of_each() -> None:
    model, batch = network(), make_batch()
    mix = Mix(torch.arange(COUNT), PatchCutMix(8).own(Draws(0, 0, batch.index), (SIDE, SIDE)))
    for share in mixing_ratios(model, batch.x, mix).similarity:
        assert torch.allclose(share, torch.tensor(0.5), atol=1e-6)


def test_a_pyramid_ends_in_the_label_of_its_objective() -> None:
    torch.manual_seed(0)
    config = SwinConfig(width=8, depths=(1, 1), heads=(1, 2), window=4)
    model, plain = config.build(3, (SIDE, SIDE), CLASSES), make_batch()
    batch = apply_all([PatchCutMix(8)], plain, Draws(3, 0, plain.index, step=5))
    assert batch.mix is not None
    found = mixing_ratios(model, plain.x, batch.mix)
    assert [share.shape for share in found.similarity] == [(COUNT, 64), (COUNT, 16)]
    assert found.own.shape == (COUNT, 8, 8)
    assert torch.allclose(found.read, TlAlignConfig().build(model).answer(batch)[1].weight[:, 0], atol=1e-6)
    assert torch.allclose(found.of_image(found.aligned)[-1], found.read, atol=1e-6)
    assert found.trans_mix is None


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_figures_over_batches_equal_those_of_all_mixtures(pool: str) -> None:
    model, one, found = network(pool=pool), MixingRatio(), []
    for number in (1, 0):  # the later samples come first
        plain = make_batch()
        plain = plain.changed(x=plain.x + number, index=plain.index + number * COUNT)
        mix = PatchCutMix(8).sample(Draws(number, 0, plain.index), plain)
        found.insert(0, mixing_ratios(model, plain.x, mix))
        one.update(plain, found[0])
    similarity = torch.cat([ratios.of_image(ratios.similarity) for ratios in found], 1)  # (L, N)
    rules = {"tl_align": torch.cat([ratios.of_image(ratios.aligned) for ratios in found], 1)}
    rules["area"] = torch.cat([ratios.own.mean((1, 2)) for ratios in found]).repeat(4, 1)
    if pool == "class":
        rules["trans_mix"] = torch.cat([ratios.trans_mix for ratios in found]).repeat(4, 1)
    figures = one.compute()
    assert figures["pairs"] == 2 * COUNT
    assert one.distance().keys() == one.correlation().keys() == rules.keys()
    for name, rule in rules.items():
        assert one.distance()[name].tolist() == pytest.approx((rule - similarity).abs().mean(1).tolist(), abs=1e-6)
        slow = [float(torch.corrcoef(torch.stack(pair))[0, 1]) for pair in zip(rule, similarity, strict=True)]
        assert one.correlation()[name].tolist() == pytest.approx(slow, abs=1e-4)
        assert figures[f"distance_{name}"] == one.distance()[name][-1]
        assert figures[f"correlation_{name}"] == one.correlation()[name][-1]
    assert figures["moved"] == pytest.approx(float((rules["tl_align"][-1] - rules["area"][-1]).abs().mean()), abs=1e-6)


def test_models_without_blocks_are_refused() -> None:
    model, batch = ResnetConfig(18, width=16).build(3, (SIDE, SIDE), CLASSES), make_batch()
    with pytest.raises(ConfigError, match="no blocks to follow"):
        mixing_ratios(model, batch.x, Mix(torch.arange(COUNT), torch.ones(COUNT, 4, 4)))
