"""MoTo: what it equals, its layout, the formula written the slow way, and every backbone with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from small_models import small
from tilework.core.batch import Batch, Target
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.layers.moto import TEMPERATURE, Moto, relative_entropy
from tilework.layers.stem_moto import NORMS, MotoStemConfig
from tilework.layers.stems import PatchStemConfig, TokenStemConfig
from tilework.models import Visible, VitConfig
from tilework.objectives import Classify, Combined, TokenPropConfig


def random_moto(channels: int = 6, entities: int = 4, hard: bool = False) -> Moto:
    """With parameters that all matter."""
    torch.manual_seed(0)
    moto = Moto(channels, entities, hard).eval()
    for parameter in moto.parameters():
        nn.init.normal_(parameter)
    return moto


def slow(moto: Moto, x: Tensor) -> Tensor:
    """Eqs. 3 to 5 for one image, entity by entity and place by place. x: (C, H, W)."""
    places = moto.places(x[None])[0].tolist()
    key, query, feature = (f(x[None])[0].flatten(1) for f in (moto.key, moto.query, moto.feature))
    z = torch.stack([moto.dictionary[i] * (key[:, p] @ query) + feature[i] for i, p in enumerate(places)])
    layout, flat = (TEMPERATURE * z).exp(), x.flatten(1)
    layout = layout / layout.sum(0)
    if moto.hard:
        layout = F.one_hot(layout.argmax(0), len(places)).T.float()
    out = torch.zeros_like(flat)
    for i, share in enumerate(layout):
        if share.sum() == 0:
            continue
        for c, row in enumerate(flat):
            mean = sum(share[p] * row[p] for p in range(len(row))) / share.sum()
            variance = sum(share[p] * (row[p] - mean) ** 2 for p in range(len(row))) / share.sum()
            normed = (row - mean) / (variance + moto.eps).sqrt()
            out[c] += (normed * moto.entity_scale[i, c] + moto.entity_shift[i, c]) * share
    return out.view_as(x)


def test_one_entity_is_instance_normalisation() -> None:
    torch.manual_seed(0)
    x = 3 + 2 * torch.randn(2, 6, 5, 7)
    torch.testing.assert_close(Moto(6, 1)(x), F.instance_norm(x), atol=1e-5, rtol=0)


def test_a_uniform_layout_is_instance_normalisation() -> None:
    torch.manual_seed(0)
    moto, x = Moto(6, 8), 3 + 2 * torch.randn(2, 6, 5, 7)
    layout = torch.full((2, 8, 35), 1 / 8)
    torch.testing.assert_close(moto.modulate(x, layout), F.instance_norm(x), atol=1e-5, rtol=0)
    nn.init.zeros_(moto.dictionary)
    for parameter in moto.feature.parameters():
        nn.init.zeros_(parameter)
    torch.testing.assert_close(moto(x), F.instance_norm(x), atol=1e-5, rtol=0)


@pytest.mark.parametrize("hard", [False, True])
def test_it_is_the_formula(hard: bool) -> None:
    moto, x = random_moto(hard=hard), torch.randn(2, 6, 4, 5)
    with torch.no_grad():
        wanted = torch.stack([slow(moto, one) for one in x])
        # an entity of a single place has no variance: rounding errors are divided by the root of epsilon
        torch.testing.assert_close(moto(x), wanted, atol=1e-4 if hard else 1e-5, rtol=1e-5)


@pytest.mark.parametrize("hard", [False, True])
def test_shares_of_a_place_sum_to_one_and_every_parameter_learns(hard: bool) -> None:
    moto, x = random_moto(entities=8, hard=hard).train(), torch.randn(2, 6, 4, 5)
    layout = moto.layout(x, moto.places(x))
    torch.testing.assert_close(layout.sum(1), torch.ones(2, 20))
    if hard:
        assert set(layout.detach().round(decimals=5).unique().tolist()) <= {0.0, 1.0}
    moto(x).square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in moto.parameters())


def test_the_order_of_entities_does_not_matter() -> None:
    moto, x = random_moto(), torch.randn(2, 6, 4, 5)
    places, order = moto.places(x), torch.tensor([2, 0, 3, 1])
    before = moto.modulate(x, moto.layout(x, places))
    with torch.no_grad():
        for parameter in (
            moto.feature.weight,
            moto.feature.bias,
            moto.dictionary,
            moto.entity_scale,
            moto.entity_shift,
        ):
            parameter.copy_(parameter[order].clone())
    torch.testing.assert_close(moto.modulate(x, moto.layout(x, places[:, order])), before)


def test_random_places_in_training_and_a_fixed_grid_in_evaluation() -> None:
    moto, x = random_moto(entities=8), torch.randn(2, 6, 8, 16)
    assert torch.equal(moto(x), moto(x))
    assert moto.places(x)[0].tolist() == [16 * i + j for i in (2, 6) for j in (2, 6, 10, 14)]
    assert torch.equal(moto(x)[:1], moto(x[:1]))  # and no sample knows of others
    moto.train()
    assert not torch.equal(moto.places(x), moto.places(x))
    assert moto(torch.randn(1, 6, 1, 1)).isfinite().all()


def test_large_maps_go_through_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    moto, x = random_moto(), torch.randn(5, 6, 4, 5, requires_grad=True)
    found = []
    for cached in (1 << 18, 2 * 6 * 4 * 5, 1):  # all at once, two at a time, one at a time
        monkeypatch.setattr("tilework.layers.moto.CACHED", cached)
        y = moto(x)
        found.append((y, torch.autograd.grad(y.square().mean(), (x, moto.entity_scale))))
    for y, slopes in found[1:]:
        torch.testing.assert_close(y, found[0][0])
        torch.testing.assert_close(slopes, found[0][1])


def test_it_keeps_bfloat16_exact_inside() -> None:
    moto, x = random_moto(), 100 + torch.randn(1, 6, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        y = moto.modulate(x, torch.full((1, 4, 64), 0.25))
    torch.testing.assert_close(y, moto.modulate(x, torch.full((1, 4, 64), 0.25)))


@pytest.mark.parametrize("norm", list(NORMS))
def test_other_norms_in_its_place(norm: str) -> None:
    for stem in (PatchStemConfig(8), TokenStemConfig()):
        built = MotoStemConfig(stem, "token", norm).build(3, (16, 16), 8)
        y = built(torch.randn(4, 3, 16, 16))
        assert y.shape == (4, 8, *built.grid)
        if norm == "layer":
            torch.testing.assert_close(y.mean(1), torch.zeros_like(y[:, 0]), atol=1e-5, rtol=0)
        if norm == "instance":
            torch.testing.assert_close(y.mean((2, 3)), torch.zeros(4, 8), atol=1e-5, rtol=0)
        if norm != "moto":
            with pytest.raises(ConfigError, match="has no layout"):
                built.layout(torch.randn(1, 3, 16, 16))


def test_layouts_differ_between_places_from_the_start() -> None:
    """Oracle: instance normalisation, which a narrow start cannot be told from."""
    torch.manual_seed(0)
    x, apart = torch.randn(4, 16, 12, 12), {}
    for spread in (0.02, 1.0, 3.0):
        moto = Moto(16, spread=spread)
        scores = TEMPERATURE * moto.feature(x)
        assert scores.std().item() == pytest.approx(spread, rel=0.3)
        y = moto(x)
        apart[spread] = ((y - F.instance_norm(x)).norm() / y.norm()).item()
    assert apart[0.02] < 0.001 < 0.05 < apart[1.0] < apart[3.0]
    with pytest.raises(ValueError, match="spread is -1"):
        MotoStemConfig(spread=-1)


@pytest.mark.parametrize("name", ["deit_ti", "pvt_small", "pvt_v2_b2", "swin_t", "t2t_vit_14", "convnext_t"])
def test_networks_leave_the_start_as_it_is(name: str) -> None:
    config: Any = small(name)
    model = replace(config, stem=MotoStemConfig(config.stem, channels=64, spread=3.0)).build(3, (64, 64), 5)
    (moto,) = (m for m in model.modules() if isinstance(m, Moto))
    assert moto.feature.weight.std().item() == pytest.approx(3 / (TEMPERATURE * 8), rel=0.15)


def test_the_entropy_of_the_layout_is_noted_in_training_alone() -> None:
    moto, x = random_moto(entities=8), torch.randn(2, 6, 4, 5)
    moto(x)
    assert moto.readings == {}
    torch.manual_seed(3)
    moto.train()(x)
    torch.manual_seed(3)
    layout = moto.layout(x, moto.places(x)).double()
    wanted = sum(-p * p.log2() for p in layout.unbind(1)).mean() / 3  # bits of eight entities
    found = moto.readings["layout_entropy"]
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert not found.requires_grad
    assert relative_entropy(torch.full((1, 8, 3), 1 / 8)).item() == pytest.approx(1)
    assert relative_entropy(F.one_hot(torch.tensor([[0, 5, 1]]), 8).mT.float()).item() == 0


def test_the_log_tells_the_entropy_of_every_layout_whatever_the_objective() -> None:
    torch.manual_seed(0)
    config = VitConfig(width=16, depth=2, heads=2, moto_blocks=1, stem=MotoStemConfig(PatchStemConfig(8)))
    model = config.build(3, (32, 32), 4)
    batch = Batch(torch.randn(2, 3, 32, 32), Target.hard(torch.arange(2)), torch.arange(2))
    draws = Draws(0, 0, batch.index)
    names = {"patch_embed.moto.layout_entropy", "motos.0.layout_entropy"}
    for objective in (
        Classify(model),
        Combined(Classify(model), {"token_prop": (0.1, TokenPropConfig().build(model))}),
    ):
        found = objective.train()(batch, draws)
        assert {name for name in found if "layout" in name} == names
        assert all(0 < found[name] < 1 for name in names)
        assert not names & objective.eval()(batch, draws).keys()


def test_a_norm_before_the_stem_leaves_the_stem_its_parameters() -> None:
    torch.manual_seed(0)
    plain, control = PatchStemConfig(8).build(3, (16, 16), 8), MotoStemConfig(PatchStemConfig(8), norm="none")
    for norm in NORMS:
        inner = replace(control, norm=norm).build(3, (16, 16), 8).inner
        assert [p.shape for p in inner.parameters()] == [p.shape for p in plain.parameters()]
    stem, x = control.build(3, (16, 16), 8), torch.randn(2, 3, 16, 16)
    with torch.no_grad():  # nothing but convolutions: without their biases it is linear
        for parameter in stem.parameters():
            parameter.mul_(parameter.ndim > 1)
        torch.testing.assert_close(stem(x - 2 * x.flip(0)), stem(x) - 2 * stem(x.flip(0)), atol=1e-5, rtol=1e-5)


def test_layouts_are_maps() -> None:
    x = torch.randn(2, 3, 16, 16)
    assert MotoStemConfig(PatchStemConfig(8)).build(3, (16, 16), 8).layout(x).shape == (2, 8, 16, 16)
    assert MotoStemConfig(PatchStemConfig(8), "token").build(3, (16, 16), 8).layout(x).shape == (2, 8, 2, 2)


def test_first_blocks_of_a_vit_end_with_it() -> None:
    torch.manual_seed(0)
    config = VitConfig(width=16, depth=3, heads=2, moto_blocks=2, stem=PatchStemConfig(8))
    vit, x = config.build(3, (32, 32), 5), torch.randn(2, 3, 32, 32)
    vit(x).logits.square().mean().backward()
    assert all(p.grad is not None for p in vit.motos.parameters())
    assert [vit.layer_of(f"motos.{i}.entity_scale") for i in (0, 1)] == [1, 2]
    assert vit(x, visible=Visible(torch.tensor([[3, 1], [0, 2]]))).tokens.shape == (2, 2, 16)
    with pytest.raises(ConfigError, match="MoTo in 4 of 3 blocks"):
        VitConfig(width=16, depth=3, heads=2, moto_blocks=4).build(3, (32, 32), 5)


@pytest.mark.parametrize("place", ["pixel", "token"])
def test_onnx_says_what_torch_says(place: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    stem = MotoStemConfig(PatchStemConfig(8), place=place)
    model = VitConfig(width=16, depth=2, heads=2, moto_blocks=1, stem=stem).build(3, (16, 16), 5).eval()

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x).logits

    x = torch.randn(2, 3, 16, 16)
    torch.onnx.export(Logits().eval(), (x,), tmp_path / "m.onnx", dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(found), model(x).logits, atol=1e-4, rtol=1e-4)
