"""UPerNet and the linear head: mmsegmentation's numbers and parameters, every backbone, weights to begin with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from small_dense import MMSEG, fill, wave
from small_models import small
from tilework.core.batch import Mix
from tilework.core.config import decode, encode
from tilework.core.errors import ConfigError
from tilework.layers.stems import TokenPatchStemConfig
from tilework.models import (
    DenseModel,
    LinearSegmenterConfig,
    MlpMixerConfig,
    ModelConfig,
    TokenAdaptModelConfig,
    UpernetConfig,
    VitConfig,
    adopt,
    preset,
    presets,
)
from tilework.models.dense import ClassLayer
from tilework.models.upernet import UpernetHead
from tilework.objectives import SegmentConfig
from tilework.objectives.segment import FcnHead

BACKBONES = [name for name in presets if not isinstance(presets[name], MlpMixerConfig)]


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("widths", "grids"),
    [((8, 12, 16, 20), ((24, 28), (12, 14), (6, 7), (3, 4))), ((12,) * 4, ((7, 9),) * 4)],
)
def test_the_head_is_that_of_mmsegmentation(widths: tuple[int, ...], grids: tuple[tuple[int, int], ...]) -> None:
    head = UpernetHead(widths, UpernetConfig(channels=6), 5).eval()
    fill(head)
    logits = head(tuple(wave((2, w, *g), i) for i, (w, g) in enumerate(zip(widths, grids, strict=True))))
    wanted = torch.tensor(MMSEG[f"upernet {widths[0]}"])
    assert torch.allclose(logits[0, :, ::5, ::5].flatten()[:24], wanted, atol=1e-4, rtol=1e-5)


def test_the_auxiliary_head_is_that_of_mmsegmentation() -> None:
    head = FcnHead(12, 6, 5).eval()
    fill(head)
    logits = head(wave((2, 12, 7, 9), 0))
    assert torch.allclose(logits[0, :, ::3, ::3].flatten()[:24], torch.tensor(MMSEG["fcn"]), atol=1e-4)


def test_parameters_are_those_of_mmsegmentation() -> None:
    with torch.device("meta"):
        swin = UpernetConfig(preset("swin_t")).build(3, (512, 512), 150)
        small_vit = UpernetConfig(preset("deit_s"), neck="multilevel").build(3, (512, 512), 150)
        base = UpernetConfig(preset("deit_b"), neck="multilevel").build(3, (512, 512), 150)
        whole = SegmentConfig(auxiliary_stage=2).build(swin)
        auxiliary = [SegmentConfig().build(model).head for model in (small_vit, base)]
    assert count(swin.decoder) == 31_497_366
    assert count(swin.backbone) + count(swin.stage_norms) == 27_520_698
    assert count(whole) == 59_941_862
    assert (count(small_vit.decoder), count(base.decoder)) == (29_187_222, 32_332_950)
    assert small_vit.neck is not None
    assert base.neck is not None
    assert (count(small_vit.neck), count(base.neck)) == (5_901_312, 23_599_104)
    assert [count(head) for head in auxiliary if head] == [923_798, 1_808_534]


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.parametrize("kind", [UpernetConfig, LinearSegmenterConfig])
def test_every_backbone_learns_all_of_its_parameters(name: str, kind: Any) -> None:
    """A parameter without a gradient would stop DistributedDataParallel."""
    torch.manual_seed(0)
    more = {"channels": 8} if kind is UpernetConfig else {}
    model = kind(small(name), **more).build(3, (64, 64), 5).train()
    out = model(torch.randn(2, 3, 64, 64), stages=True)
    assert out.logits.shape[:2] == (2, 5)
    assert [stage.shape[1] for stage in out.stages] == list(model.stage_widths)
    (out.logits.square().mean() + sum(stage.square().mean() for stage in out.stages)).backward()
    without = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not without
    layers = {n: model.layer_of(n) for n, _ in model.named_parameters()}
    assert set(layers.values()) <= set(range(model.layers))
    assert all(layers[n] == model.layers - 1 for n in layers if n.startswith("decoder."))


def test_logits_have_the_grid_of_the_finest_map() -> None:
    x = torch.randn(2, 3, 64, 96)
    vit = VitConfig(width=16, depth=4, heads=2)
    for neck, grid in (("none", (4, 6)), ("multilevel", (16, 24)), ("multilevel_norm", (16, 24))):
        model = UpernetConfig(vit, channels=8, neck=neck).build(3, (64, 96), 3).eval()
        out = model(x)
        assert out.logits.shape == (2, 3, *grid)
        assert model.token_logits(out).shape == (2, grid[0] * grid[1], 3)
        assert out.stages == ()
    assert model(torch.randn(1, 3, 96, 64)).logits.shape == (1, 3, 24, 16)  # another canvas, the same weights


def test_codes_are_taken_too() -> None:
    model = UpernetConfig(VitConfig(width=16, depth=4, heads=2), channels=8).for_tokens().build(6, (18, 24), 3)
    assert model.takes == "map"
    assert model(torch.randn(2, 6, 18, 24)).logits.shape == (2, 3, 9, 12)
    assert LinearSegmenterConfig(VitConfig(width=16, depth=4, heads=2)).for_tokens().build(6, (4, 4), 3).takes == "map"


@pytest.mark.parametrize("name", ["deit_s", "swin_t", "pvt_v2_b1", "lv_vit_s", "resnet18"])
def test_a_classifier_starts_the_backbone(name: str) -> None:
    torch.manual_seed(0)
    config: Any = small(name)
    classifier = config.build(3, (64, 64), 10)
    model = UpernetConfig(config, channels=8).build(3, (64, 64), 3)
    adopted = adopt(model, classifier.state_dict())
    assert adopted.replaced
    assert all(n.startswith(("decoder.", "stage_norms.")) for n in adopted.replaced)
    assert all(n.startswith("backbone.") for n in adopted.kept)
    theirs = classifier.state_dict()
    for n in adopted.kept:
        assert torch.equal(model.state_dict()[n], theirs[n.removeprefix("backbone.")]), n


def test_a_segmenter_starts_another_and_positions_are_resized() -> None:
    config = UpernetConfig(VitConfig(width=16, depth=4, heads=2), channels=8)
    first, second, other = (config.build(3, grid, k) for grid, k in (((64, 64), 3), ((64, 96), 3), ((64, 64), 4)))
    adopted = adopt(second, first.state_dict(), (4, 4))
    assert adopted.resized == ("backbone.pos_embed",)
    assert not adopted.replaced
    assert torch.equal(second.decoder.classify.weight, first.decoder.classify.weight)
    assert "decoder.classify.weight" in adopt(other, first.state_dict()).replaced


def test_settings_survive_and_senseless_ones_are_refused() -> None:
    config = UpernetConfig(VitConfig(width=16, stem=TokenPatchStemConfig()), neck="multilevel")
    assert decode(ModelConfig, encode(config)) == config
    with pytest.raises(ConfigError, match="gives no maps of its stages"):
        UpernetConfig(TokenAdaptModelConfig()).build(3, (32, 32), 3)
    model = UpernetConfig(replace(config.backbone, depth=2, heads=2), channels=4).build(6, (8, 8), 3)  # type: ignore[call-arg]
    assert isinstance(model, DenseModel)
    x = torch.zeros(2, 6, 8, 8)
    for wrong in ({"track": True}, {"visible": torch.zeros(2, 1, dtype=torch.int64)}):
        with pytest.raises(ConfigError, match="reads whole maps"):
            model(x, **wrong)
    mix = Mix(torch.tensor([1, 0]), torch.ones(2, 8, 8), after_stem=True)
    assert model(x, mix=mix).logits.shape == (2, 3, 4, 4)


def test_logits_of_parts_of_a_position_lie_where_the_parts_do() -> None:
    layer, x = ClassLayer(4, 3, upscale=2), torch.randn(2, 4, 3, 5)
    found, flat = layer(x), nn.functional.conv2d(x, layer.weight, layer.bias)  # (2, 12, 3, 5)
    assert found.shape == (2, 3, 6, 10)
    for k in range(3):
        for row in range(6):
            for column in range(10):
                part = 4 * k + 2 * (row % 2) + column % 2
                assert torch.equal(found[:, k, row, column], flat[:, part, row // 2, column // 2])


@pytest.mark.parametrize("kind", [UpernetConfig, LinearSegmenterConfig])
def test_heads_can_be_finer_than_their_positions(kind: Any) -> None:
    backbone = VitConfig(width=16, depth=4, heads=2)
    x = torch.randn(2, 3, 32, 48)
    assert kind(backbone, upscale=4).build(3, (32, 48), 5)(x).logits.shape == (2, 5, 8, 12)
    with pytest.raises(ConfigError, match=r"model\.upscale=0"):
        kind(backbone, upscale=0)
