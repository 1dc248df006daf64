"""Which parameters decay, and how fast each layer learns."""

from __future__ import annotations

import torch

from tilework.layers.stem_moto import MotoStemConfig
from tilework.layers.stems import TokenStemConfig
from tilework.models import SwinConfig, VitConfig
from tilework.objectives import Classify
from tilework.train import OptimConfig
from tilework.train.optim import build_optimiser


def objective() -> Classify:
    return Classify(VitConfig(width=8, depth=2, heads=2, stem=TokenStemConfig()).build(4, (4, 4), 3))


def groups(config: OptimConfig, whole: Classify | None = None) -> dict[str, tuple[float, float]]:
    whole = whole or objective()
    names = {id(p): name for name, p in whole.named_parameters()}
    return {
        names[id(p)]: (group["weight_decay"], group["scale"])
        for group in build_optimiser(whole, config).param_groups
        for p in group["params"]
    }


def test_biases_norms_positions_and_class_token_do_not_decay() -> None:
    found = groups(OptimConfig(weight_decay=0.3))
    free = {name for name, (decay, _) in found.items() if decay == 0}
    assert "model.pos_embed" in free
    assert "model.cls_token" in free
    assert all(name in free for name in found if name.endswith("bias") or "norm" in name)
    assert found["model.blocks.0.attn.qkv.weight"][0] == 0.3
    assert found["model.patch_embed.proj.weight"][0] == 0.3


def test_biases_of_distances_do_not_decay() -> None:
    swin = SwinConfig(width=4, depths=(1,), heads=(2,), window=2).build(3, (8, 8), 3)
    found = groups(OptimConfig(weight_decay=0.3), Classify(swin))
    assert found["model.stages.0.blocks.0.attn.relative_position_bias_table"][0] == 0
    assert found["model.stages.0.blocks.0.attn.qkv.weight"][0] == 0.3


def test_every_parameter_is_in_one_group() -> None:
    assert set(groups(OptimConfig())) == {name for name, _ in objective().named_parameters()}


def test_layer_decay_falls_towards_the_stem() -> None:
    found = groups(OptimConfig(layer_decay=0.5))
    assert found["model.head.weight"][1] == 1.0
    assert found["model.blocks.1.attn.qkv.weight"][1] == 0.5
    assert found["model.blocks.0.attn.qkv.weight"][1] == 0.25
    assert found["model.patch_embed.proj.weight"][1] == 0.125


def test_sgd_momentum_is_the_textbook_update() -> None:
    p = torch.nn.Parameter(torch.tensor([[1.0, 2.0]]))
    holder = torch.nn.Module()
    holder.model, holder.p = torch.nn.Module(), p
    optimiser = build_optimiser(holder, OptimConfig("sgd", lr=0.1, weight_decay=0.0, momentum=0.5))
    velocity, value = torch.zeros(1, 2), p.detach().clone()
    for gradient in (torch.tensor([[1.0, -1.0]]), torch.tensor([[2.0, 0.5]])):
        p.grad = gradient.clone()
        optimiser.step()
        velocity = 0.5 * velocity + gradient
        value = value - 0.1 * velocity
    torch.testing.assert_close(p.detach(), value)


def test_scales_and_shifts_of_entities_do_not_decay() -> None:
    vit = VitConfig(width=16, depth=1, heads=2, stem=MotoStemConfig(TokenStemConfig(), "token")).build(5, (8, 8), 3)
    optimiser = build_optimiser(Classify(vit), OptimConfig(weight_decay=0.1))
    free = {id(p) for group in optimiser.param_groups if group["weight_decay"] == 0 for p in group["params"]}
    assert {name for name, p in vit.patch_embed.moto.named_parameters() if id(p) not in free} == {
        "feature.weight",
        "key.weight",
        "query.weight",
    }
