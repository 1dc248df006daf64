"""Gradient times attention and rollout against matrices worked out by hand; what is watched is not changed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from tilework.core.errors import ConfigError, MachineError
from tilework.evaluation.relevance import gradient, gradient_attention, rollout, watched
from tilework.layers.stems import PatchStemConfig
from tilework.models import ResnetConfig, Vit, VitConfig


def network(pool: str = "class", depth: int = 2) -> Vit:
    torch.manual_seed(0)
    config = VitConfig(width=16, depth=depth, heads=2, pool=pool, stem=PatchStemConfig(8))  # type: ignore[arg-type]
    model = config.build(3, (16, 24), 5).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def matrices(model: Vit, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """Attention of every block, computed anew with gradient, and the logits that follow from it."""
    tokens = model.patch_embed(x).flatten(2).transpose(1, 2) + model.pos_embed[:, 1:]
    tokens = torch.cat([(model.cls_token + model.pos_embed[:, :1]).expand(len(x), -1, -1), tokens], 1)
    found = []
    for block in model.blocks:
        batch, count, width = tokens.shape
        qkv = block.attn.qkv(block.norm1(tokens)).view(batch, count, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        a = (qkv[0] @ qkv[1].transpose(-2, -1) / (width // 2) ** 0.5).softmax(-1)
        found.append(a)
        tokens = tokens + block.attn.proj((a @ qkv[2]).transpose(1, 2).reshape(batch, count, width))
        tokens = tokens + block.mlp(block.norm2(tokens))
    tokens = model.norm(tokens)
    read = tokens[:, 1:].mean(1) if model.config.pool == "mean" else tokens[:, 0]
    return found, model.head(model.fc_norm(read))


def rows(model: Vit, total: Tensor) -> Tensor:
    return (total[:, 1:].mean(1) if model.config.pool == "mean" else total[:, 0])[:, 1:].view(-1, 2, 3)


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_gradient_times_attention_block_by_block(pool: str) -> None:
    model, x, classes = network(pool), torch.randn(3, 3, 16, 24), torch.tensor([4, 0, 2])
    found, logits = matrices(model, x)
    assert torch.allclose(logits, model(x).logits, atol=1e-4), "the hand-made forward is the model's"
    slopes = torch.autograd.grad(logits[torch.arange(3), classes].sum(), found)
    total = torch.eye(7).repeat(3, 1, 1)
    for a, slope in zip(found, slopes, strict=True):
        total = total + (a * slope).clamp(min=0).mean(1) @ total
    assert torch.allclose(gradient_attention(model, x, classes), rows(model, total).detach(), atol=1e-5)


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_rollout_is_the_product_of_mean_attention_and_identity(pool: str) -> None:
    model, x = network(pool), torch.randn(2, 3, 16, 24)
    found, _ = matrices(model, x)
    total = torch.eye(7).repeat(2, 1, 1)
    for a in found:
        total = (0.5 * a.mean(1) + 0.5 * torch.eye(7)) @ total
    assert torch.allclose(rollout(model, x), rows(model, total).detach(), atol=1e-5)


def test_other_classes_look_elsewhere_and_samples_do_not_mix() -> None:
    model, x = network(), torch.randn(2, 3, 16, 24)
    one, other = (gradient_attention(model, x, torch.tensor([c, c])) for c in (0, 3))
    assert not torch.allclose(one, other)
    assert torch.allclose(gradient_attention(model, x[:1], torch.tensor([0])), one[:1], atol=1e-5)
    assert (one >= 0).all()


def test_watching_changes_nothing_and_ends() -> None:
    model, x = network(), torch.randn(2, 3, 16, 24)
    plain = model(x).logits
    with watched(model) as seen:
        assert torch.allclose(model(x).logits, plain, atol=1e-5)
        assert [tuple(a.shape) for a in seen] == [(2, 2, 7, 7)] * 2
    assert all(block.attn.seen is None for block in model.blocks)
    assert all(p.grad is None for p in model.parameters())
    model.requires_grad_(False)
    assert gradient_attention(model, x, torch.tensor([0, 1])).shape == (2, 2, 3), "frozen weights are no hindrance"


def test_networks_without_attention_are_refused() -> None:
    model = ResnetConfig(18, width=8).build(3, (32, 32), 3)
    with pytest.raises(ConfigError, match="no attention"):
        rollout(model, torch.zeros(1, 3, 32, 32))


@pytest.mark.skipif(find_spec("captum") is not None, reason="captum is here")
def test_what_is_missing_for_gradients_is_said() -> None:
    with pytest.raises(MachineError, match="captum"):
        gradient(network(), torch.zeros(1, 3, 16, 24), torch.tensor([0]))


@pytest.mark.skipif(find_spec("captum") is None, reason="needs captum")
def test_gradients_of_captum_have_the_grid_of_the_tokens() -> None:
    assert gradient(network(), torch.randn(2, 3, 16, 24), torch.tensor([0, 1])).shape == (2, 2, 3)
