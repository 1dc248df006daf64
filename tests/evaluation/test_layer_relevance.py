"""Propagated relevance against numbers of the authors' code; totals are kept from layer to layer; special heads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tilework.core.errors import ConfigError
from tilework.evaluation.layer_relevance import relevance, through_block, through_head, through_linear
from tilework.evaluation.relevance import gradient_attention
from tilework.layers.stems import PatchStemConfig
from tilework.models import ResnetConfig, Vit, VitConfig

CONFIG = VitConfig(width=16, depth=2, heads=2, stem=PatchStemConfig(8))
CLASSES = torch.tensor([4, 0, 2])
# of ViT_LRP.VisionTransformer, github.com/hila-chefer/Transformer-Explainability, commit c3e578f76b95: relprop with
# method="transformer_attribution" and alpha=1, in double precision, all norms with eps 1e-6; the first, sixth, eleventh
# and last patch of each image
PUBLISHED = torch.tensor(
    [
        [0.0003159723517242, 9.957514966490e-05, 0.0002349634437288, 0.0002549835152789],
        [0.0001941322881192, 1.0370226501665e-03, 0.0001451775234286, 0.0008111315543490],
        [0.0005616961874775, 1.2514981449002e-04, 0.0004599898290489, 0.0001015096001151],
    ],
    dtype=torch.float64,
)


def network(config: VitConfig = CONFIG) -> Vit:
    """Weights by a formula, in double precision: the same numbers wherever it runs."""
    model = config.build(3, (32, 32), 5).double().eval()
    with torch.no_grad():
        for i, (_, parameter) in enumerate(sorted(model.named_parameters())):
            at = torch.arange(parameter.numel(), dtype=torch.float64)
            value = torch.sin(at * 12.9898 + 78.233 * (i + 1)) * 43758.5453
            parameter.copy_(((value - value.floor()) - 0.5).view_as(parameter).float() * 0.8)
    return model


def images() -> Tensor:
    return torch.cos(torch.arange(3 * 3 * 32 * 32, dtype=torch.float64) * 0.37).view(3, 3, 32, 32)


def test_numbers_of_the_authors_code() -> None:
    found = relevance(network(), images(), CLASSES)
    assert found.shape == (3, 4, 4)
    assert (found.flatten(1)[:, [0, 5, 10, 15]] - PUBLISHED).abs().max() < 1e-8
    assert (relevance(network().float(), images().float(), CLASSES) - found).abs().max() < 1e-7


def test_small_differences_between_patches_survive_single_precision() -> None:
    """All patches are read alike where the mean is classified: what attention adds must not drown in that number."""
    faint = network(replace(CONFIG, pool="mean"))
    with torch.no_grad():
        for block in faint.blocks:
            block.attn.proj.weight *= 1e-4  # type: ignore[union-attr]
    exact = relevance(faint, images(), CLASSES).flatten(1)
    found = relevance(faint.float(), images().float(), CLASSES).flatten(1)
    spread = exact - exact.mean(1, keepdim=True)
    assert 0 < spread.abs().max() < 1e-6
    assert torch.allclose(found - found.mean(1, keepdim=True), spread, rtol=0, atol=0.02 * float(spread.abs().max()))


@pytest.mark.parametrize(
    "changes",
    [{}, {"pool": "mean"}, {"divisor": 2.0}, {"dense": True}, {"dense": True, "pool": "mean", "divisor": 3.0}],
)
def test_the_total_is_kept_from_layer_to_layer(changes: dict[str, Any]) -> None:
    model, tokens = network(replace(CONFIG, **changes)), torch.sin(torch.arange(3 * 17 * 16).double()).view(3, 17, 16)
    with torch.no_grad():
        entered = [tokens]
        for block in model.blocks:
            entered.append(block(entered[-1])[0])
        passed, read = through_head(model, entered.pop(), CLASSES)
        assert torch.allclose(read.sum(1), torch.ones(3).double(), atol=1e-6)
        assert torch.allclose(passed.sum((1, 2)), torch.ones(3).double(), atol=1e-5)
        for block in reversed(model.blocks):
            passed, attended = through_block(block, entered.pop(), passed)
            assert torch.allclose(passed.sum((1, 2)), torch.ones(3).double(), atol=1e-4)
            assert attended.shape == (3, 2, 17, 17)


def test_a_linear_layer_shares_by_positive_contributions() -> None:
    """One output after another, one input after another."""
    generator = torch.Generator().manual_seed(0)
    layer, x = torch.nn.Linear(4, 3).double().requires_grad_(False), torch.randn(4, generator=generator).double()
    layer.weight.copy_(torch.randn(3, 4, generator=generator))
    passed = torch.rand(3, generator=generator).double()
    expected = torch.zeros(4).double()
    for i in range(3):
        terms = [max(0.0, float(layer.weight[i, j] * x[j])) for j in range(4)]
        for j in range(4):
            expected[j] += float(passed[i]) * terms[j] / sum(terms)
    assert torch.allclose(through_linear(layer, x, passed), expected, atol=1e-7)


def test_a_divisor_is_a_smaller_last_layer_of_each_branch() -> None:
    divided, plain = network(replace(CONFIG, divisor=2.0)), network()
    with torch.no_grad():
        for block in plain.blocks:
            for layer in (block.attn.proj, block.mlp.fc2):
                layer.weight /= 2
                layer.bias /= 2
    assert torch.allclose(relevance(divided, images(), CLASSES), relevance(plain, images(), CLASSES), atol=1e-9)


def test_a_dense_head_that_says_nothing_changes_nothing() -> None:
    with_head, plain = network(replace(CONFIG, dense=True)), network()
    assert with_head.aux_head is not None
    with torch.no_grad():
        plain.load_state_dict({k: v for k, v in with_head.state_dict().items() if not k.startswith("aux_head")})
        spoken = relevance(with_head, images(), CLASSES)
        with_head.aux_head.weight.zero_()
        with_head.aux_head.bias.zero_()
    silent = relevance(with_head, images(), CLASSES)
    assert torch.allclose(silent, relevance(plain, images(), CLASSES), atol=1e-9)
    assert not torch.allclose(silent, spoken, atol=1e-6)


def test_a_dense_head_alone_is_read_at_the_token_that_says_most() -> None:
    model = network(replace(CONFIG, dense=True))
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
        tokens = torch.sin(torch.arange(3 * 17 * 16).double()).view(3, 17, 16)
        passed, read = through_head(model, tokens, CLASSES)
        said = model.aux_head(model.norm(tokens)[:, 1:])
    best = said[torch.arange(3), :, CLASSES].argmax(1)
    assert torch.allclose(read, torch.nn.functional.one_hot(best + 1, 17).double(), atol=1e-6)
    assert (passed.abs().sum(-1) > 0).nonzero()[:, 1].tolist() == (best + 1).tolist()


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_other_classes_look_elsewhere_and_samples_do_not_mix(pool: Any) -> None:
    model, x = network(replace(CONFIG, pool=pool)), images()
    one, other = (relevance(model, x, torch.full((3,), c)) for c in (0, 3))
    assert not torch.allclose(one, other, atol=1e-6)
    assert torch.allclose(relevance(model, x[1:2], torch.tensor([0])), one[1:2], atol=1e-12)
    assert (one >= 0).all()
    again = gradient_attention(model.float(), x.float(), torch.zeros(3).long()).double()
    assert not torch.allclose(one, again, atol=1e-6), "another method"


def test_nothing_is_left_behind() -> None:
    model = network().requires_grad_(False)
    assert relevance(model, images(), CLASSES).isfinite().all(), "frozen weights are no hindrance"
    assert all(block.attn.seen is None and not block._forward_pre_hooks for block in model.blocks)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("config", [ResnetConfig(18, width=8), replace(CONFIG, moto_blocks=1)])
def test_what_it_cannot_go_through_is_refused(config: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"relevance cannot be propagated through a (Resnet|Vit with MoTo).*gradient_att"
    ):
        relevance(config.build(3, (32, 32), 5), torch.zeros(1, 3, 32, 32), torch.tensor([0]))
