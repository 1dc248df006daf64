"""TokenProp: its decoder, its losses, one forward for all objectives, and nothing of it in the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.core.batch import Batch, Mix, Target
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.layers.pixel_decoder import PixelDecoder
from tilework.layers.stem_frozen import FrozenStemConfig
from tilework.layers.stems import PatchStemConfig, TokenStemConfig
from tilework.models import Model, PvtConfig, ResnetConfig, VitConfig
from tilework.objectives import Classify, Combined, TokenProp, TokenPropConfig
from tilework.objectives.perceptual import Perceptual, _shapes
from tilework.objectives.token_prop import BANDWIDTH, contextual_loss
from tilework.recipes import run_of
from tilework.runs import Extra, Run, train

VIT = VitConfig(width=16, depth=1, heads=2, stem=PatchStemConfig(8))


def pixels(side: int = 32) -> Batch:
    torch.manual_seed(1)
    return Batch(torch.randn(2, 3, side, side), Target.hard(torch.arange(2)), torch.arange(2))


def draws(batch: Batch) -> Draws:
    return Draws(0, 0, batch.index)


def test_decoder_has_the_size_of_the_table() -> None:
    decoder = PixelDecoder(384)
    assert sum(p.numel() for p in decoder.layers.parameters()) == 1_079_283
    for wide, expected in ((2, [512, 512, 128, 3]), (0.25, [64, 64, 16, 3])):
        layers = PixelDecoder(384, wide=wide).layers
        assert [m.out_channels for m in layers if isinstance(m, torch.nn.Conv2d)] == expected


@pytest.mark.parametrize(("size", "wide", "residual"), [(64, 1, False), (64, 2, False), (64, 1, True), (256, 1, False)])
def test_decoder_sizes(size: int, wide: float, residual: bool) -> None:
    decoder = PixelDecoder(8, 3, size, wide, residual)
    assert decoder(torch.randn(1, 8, 7, 7)).shape == (1, 3, size, size)


def test_decoder_of_another_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="for 100 px"):
        PixelDecoder(8, size=100)
    with pytest.raises(ConfigError, match=r"x0\.1 for 64 px"):
        PixelDecoder(8, wide=0.1)


@pytest.mark.parametrize("kind", ["l1", "l2"])
@pytest.mark.parametrize(("reduce", "values"), [("sum", 12_288), ("mean", 1)])
def test_loss_is_the_sum_or_the_mean_over_the_image_at_the_size_of_the_decoder(
    kind: str, reduce: str, values: int
) -> None:
    torch.manual_seed(0)
    batch, model = pixels(128), VIT.build(3, (128, 128), 4)
    objective = TokenPropConfig(kind=kind, reduce=reduce).build(model)
    small = batch.x.view(2, 3, 64, 2, 64, 2).mean((3, 5))
    apart = objective.decoder(model.patch_embed(batch.x)) - small
    wanted = values * (apart.abs().mean() if kind == "l1" else apart.square().mean())
    torch.testing.assert_close(objective(batch, draws(batch))["loss"], wanted)
    with torch.no_grad():
        assert objective.score(model, batch)["mse"].mean() == pytest.approx(apart.square().mean().item(), rel=1e-4)


def test_code_maps_are_restored_on_their_own_grid() -> None:
    torch.manual_seed(0)
    model = replace(VIT, stem=TokenStemConfig()).build(5, (14, 14), 4)
    objective = TokenPropConfig().build(model, Codebook.of(torch.randn(11, 5)))
    x = torch.randn(2, 5, 14, 14)
    decoded, wanted = objective.compared(model.patch_embed(x), x)
    assert decoded.shape == (2, 5, 14, 14)
    assert wanted is x


def test_any_stem_of_a_pyramid_will_do_but_a_network_without_one_is_refused() -> None:
    pvt = PvtConfig(widths=(8, 8, 16, 16), depths=(1, 1, 1, 1), heads=(1, 2, 2, 4)).build(3, (32, 32), 4)
    assert TokenPropConfig().build(pvt)(pixels(), draws(pixels()))["loss"].isfinite()
    with pytest.raises(ConfigError, match="Resnet has no stem of its own"):
        TokenPropConfig().build(ResnetConfig(depth=18, width=8).build(3, (32, 32), 4))


def test_one_forward_serves_all_objectives_and_only_the_stem_gets_more_gradient() -> None:
    torch.manual_seed(0)
    batch, model = pixels(), VIT.build(3, (32, 32), 4)
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    main, extra = Classify(model), TokenPropConfig().build(model)
    found = Combined(main, {"token_prop": (0.5, extra)})(batch, draws(batch))
    assert len(calls) == 1
    alone, added = main(batch, draws(batch))["loss"], extra(batch, draws(batch))["loss"]
    torch.testing.assert_close(found["loss"], alone + 0.5 * added)
    torch.testing.assert_close(found["token_prop"], added)
    found["loss"].backward()
    both = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    main(batch, draws(batch))["loss"].backward()
    changed = {name for name, p in model.named_parameters() if not torch.allclose(p.grad, both[name])}
    assert changed == {"patch_embed.proj.weight", "patch_embed.proj.bias"}


@pytest.mark.parametrize("mixed", [False, True])
def test_the_log_tells_the_ratio_of_the_gradients_at_the_stem(mixed: bool) -> None:
    """Oracle: the two losses differentiated one after the other."""
    torch.manual_seed(0)
    batch, model = pixels(), VIT.build(3, (32, 32), 4)
    if mixed:  # after the stem: the main loss sees other tokens than the stem gave
        batch = batch.changed(mix=Mix(torch.tensor([1, 0]), torch.rand(2, 4, 4), after_stem=True))
    main, extra = Classify(model), TokenPropConfig().build(model)
    out, target = main.answer(batch)
    losses = [objective.losses(out, batch.changed(target=target), draws(batch))["loss"] for objective in (main, extra)]
    norms = [torch.autograd.grad(loss, out.stem, retain_graph=True)[0].norm().item() for loss in losses]
    passes: list[int] = []
    model.patch_embed.proj.weight.register_hook(lambda gradient: passes.append(1))
    found = Combined(main, {"token_prop": (0.5, extra)})(batch, draws(batch))
    found["loss"].backward()
    assert found["token_prop_ratio"].item() == pytest.approx(0.5 * norms[1] / norms[0], rel=1e-4)
    assert len(passes) == 1


def test_a_stem_that_does_not_learn_has_no_ratio() -> None:
    batch = pixels()
    frozen = replace(VIT, stem=FrozenStemConfig(PatchStemConfig(8))).build(3, (32, 32), 4)
    found = Combined(Classify(frozen), {"token_prop": (0.5, TokenPropConfig().build(frozen))})(batch, draws(batch))
    found["loss"].backward()
    assert found["token_prop_ratio"] == 0
    alone = TokenPropConfig().build(VIT.build(3, (32, 32), 4))(batch, draws(batch))  # nothing to compare it with
    alone["loss"].backward()
    assert alone["ratio"] == 0


def slow_contextual(x: Tensor, y: Tensor) -> Tensor:
    """One pair of feature sets, (D, P), match by match."""
    centre = y.mean(1)
    places, best = range(x.shape[1]), []
    unit = [[F.normalize(z[:, i] - centre, dim=0) for i in places] for z in (x, y)]
    d = [[1 - unit[0][i] @ unit[1][j] for j in places] for i in places]
    w = [[((1 - d[i][j] / (min(d[i]) + 1e-5)) / BANDWIDTH).exp() for j in places] for i in places]
    for j in places:
        best.append(max(w[i][j] / sum(w[i]) for i in places))
    return -(sum(best) / len(best)).log()


def test_contextual_loss_is_its_formula() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(2, 2, 4, 5)
    wanted = torch.stack([slow_contextual(a, b) for a, b in zip(x, y, strict=True)])
    torch.testing.assert_close(contextual_loss(x, y), wanted, atol=1e-4, rtol=1e-4)
    assert contextual_loss(x, x).max() < contextual_loss(x, y).min()


@pytest.mark.parametrize("kind", ["perceptual", "contextual"])
def test_losses_of_features(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    small = {n: torch.randn(s) / max(1, torch.Size(s[1:]).numel()) ** 0.5 for n, s in _shapes().items()}
    load: Callable[[str], Perceptual] = lambda path: Perceptual(small)  # noqa: E731
    monkeypatch.setattr(Perceptual, "load", load)
    objective = TokenPropConfig(kind=kind, perceptual_weights="vgg").build(VIT.build(3, (32, 32), 4))
    objective(pixels(), draws(pixels()))["loss"].backward()
    assert all(p.grad is not None for p in objective.decoder.parameters())


def test_losses_without_their_network_or_on_codes_are_refused() -> None:
    model = VIT.build(3, (32, 32), 4)
    with pytest.raises(ConfigError, match="needs a network"):
        TokenPropConfig(kind="contextual").build(model)
    with pytest.raises(ConfigError, match="compares images, not codes"):
        TokenPropConfig(kind="perceptual", perceptual_weights="x").build(model, Codebook.of(torch.randn(11, 3)))
    with pytest.raises(ConfigError, match="cannot reduce by 'max'"):
        TokenPropConfig(reduce="max").build(model)


def test_a_run_with_it_leaves_the_model_as_it_was_without(images: Path, tmp_path: Path) -> None:
    from tilework.core.config import resolve

    settings = ["size=[32,32]", "augment.0.size=[32,32]", "evaluation.0.size=[32,32]", "fit.batch=8", "fit.steps=2"]
    run: Run = resolve(run_of("lv_class_cpu"), None, settings)
    run = replace(run, model=VIT)
    added = replace(run, extra=(Extra(TokenPropConfig(), 0.0),))  # no weight: the same training
    models = [train(r, images, None, tmp_path / str(i), quiet=True).model for i, r in enumerate((run, added))]
    assert models[0].state_dict().keys() == models[1].state_dict().keys()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(models[0].eval()(x).logits, models[1].eval()(x).logits)
    assert isinstance(models[1], Model)
    assert not any(isinstance(m, TokenProp | PixelDecoder) for m in models[1].modules())
