"""Which parameters decay, and how fast each layer learns."""

from __future__ import annotations

import pytest
import torch

from small_models import small
from tilework.core.errors import ConfigError
from tilework.layers.stem_moto import MotoStemConfig
from tilework.layers.stems import TokenStemConfig
from tilework.models import Model, SwinConfig, VitConfig, presets
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


def test_the_stem_learns_by_its_own_rate() -> None:
    found = groups(OptimConfig(stem_scale=0.1))
    assert {name for name, (_, scale) in found.items() if scale != 1} == {
        "model.patch_embed.proj.weight",
        "model.patch_embed.proj.bias",
    }
    found = groups(OptimConfig(stem_scale=0.1, layer_decay=0.5))
    assert found["model.patch_embed.proj.weight"][1] == pytest.approx(0.1 * 0.125)
    assert found["model.pos_embed"][1] == 0.125  # of the same depth, but not the stem
    assert found["model.blocks.1.attn.qkv.weight"][1] == 0.5


@pytest.mark.parametrize("name", list(presets))
def test_every_network_has_a_stem_that_can_be_slowed(name: str) -> None:
    network = small(name).build(3, (64, 64), 5)
    found = groups(OptimConfig(stem_scale=0.25), Classify(network))
    slow = {inner.removeprefix("model.") for inner, (_, scale) in found.items() if scale == 0.25}
    assert slow
    assert slow == {
        inner for inner, p in network.named_parameters() if inner.startswith(network.stem_names) and p.requires_grad
    }


class Wrapped(Model):
    """As networks of timm are: the names of the stem start behind a prefix."""

    prefix, stem_names = "network.", ("conv.",)

    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.ModuleDict({"conv": torch.nn.Linear(2, 2), "head": torch.nn.Linear(2, 2)})


def test_stems_of_wrapped_networks_too() -> None:
    found = groups(OptimConfig(stem_scale=0.25), Classify(Wrapped()))
    assert {name for name, (_, scale) in found.items() if scale == 0.25} == {
        "model.network.conv.weight",
        "model.network.conv.bias",
    }


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0])
def test_a_step_moves_the_stem_by_its_share(scale: float) -> None:
    """Oracle: the first step of Adam moves every parameter by its rate, whatever the gradient."""
    whole = objective()
    optimiser = build_optimiser(whole, OptimConfig(lr=1e-3, weight_decay=0.0, stem_scale=scale))
    for group in optimiser.param_groups:
        group["lr"] = 1e-3 * group["scale"]  # as the loop does
    before = {name: p.detach().clone() for name, p in whole.named_parameters()}
    for parameter in whole.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimiser.step()
    for name, p in whole.named_parameters():
        wanted = 1e-3 * (scale if "patch_embed" in name else 1)
        torch.testing.assert_close(before[name] - p.detach(), torch.full_like(p, wanted), atol=1e-6, rtol=0)


def test_a_negative_rate_of_the_stem_and_a_network_that_names_none_are_refused() -> None:
    with pytest.raises(ValueError, match="stem_scale is -1"):
        OptimConfig(stem_scale=-1)
    with pytest.raises(ValueError, match="stem_scale is nan"):
        OptimConfig(stem_scale=float("nan"))
    holder = torch.nn.Module()
    holder.model, holder.p = torch.nn.Module(), torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(ConfigError, match="needs a model with a stem, and Module has none"):
        build_optimiser(holder, OptimConfig(stem_scale=0.5))


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
