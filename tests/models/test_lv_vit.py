"""LV-ViT: published sizes and costs, its stem, both heads and the inference rule."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tilework.core.config import decode, encode
from tilework.core.errors import ConfigError
from tilework.layers.stems import ConvStem, ConvStemConfig, StemConfig
from tilework.models import Model, VitConfig, adopt, create_model, preset


@pytest.mark.parametrize(
    ("name", "side", "parameters"),
    [
        ("lv_vit_t", 224, 8_534_720),
        ("lv_vit_s", 224, 26_151_824),
        ("lv_vit_m", 224, 55_830_544),
        ("lv_vit_l", 224, 150_021_968),
        ("lv_vit_s", 384, 26_297_744),
        ("lv_vit_m", 384, 56_025_104),
        ("lv_vit_l", 448, 150_473_552),
    ],
)
def test_published_numbers_of_parameters(name: str, side: int, parameters: int) -> None:
    with torch.device("meta"):
        model = create_model(name, grid=(side, side))
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize(
    ("name", "side", "giga"),
    [
        ("lv_vit_t", 224, 2.88),
        ("lv_vit_s", 224, 6.57),
        ("lv_vit_m", 224, 12.7),
        ("lv_vit_l", 224, 34.8),
        ("lv_vit_s", 384, 22.0),
        ("lv_vit_m", 384, 42.0),
    ],
)
def test_published_multiply_adds(name: str, side: int, giga: float) -> None:
    """Counted by torch with the math backend of attention, which its counter can see."""
    with torch.device("meta"):
        model = create_model(name, grid=(side, side)).eval()
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            model(torch.empty(1, 3, side, side))
    assert counter.get_total_flops() / 2e9 == pytest.approx(giga, rel=0.012 if giga in (22.0, 42.0) else 0.01)


def small(**changes: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return preset("lv_vit_t", width=16, depth=2, heads=2, **changes).build(3, (64, 64), 5).eval()


def test_evaluation_adds_half_of_the_highest_dense_logit() -> None:
    model, x = small(), torch.randn(2, 3, 64, 64)
    evaluated = model(x)
    assert evaluated.dense.shape == (2, 16, 5)
    for module in model.modules():
        module.training = not isinstance(module, torch.nn.BatchNorm2d)
    for block in model.blocks:
        block.drop_path = 0.0
    trained = model(x)
    assert torch.allclose(evaluated.dense, trained.dense, atol=1e-6)
    assert torch.allclose(evaluated.logits, trained.logits + 0.5 * trained.dense.max(1).values, atol=1e-6)
    assert torch.allclose(trained.dense, model.aux_head(trained.tokens), atol=1e-6)


def test_published_names_of_the_stem_are_taken_over() -> None:
    """The stem computed layer by layer from a checkpoint that has the names of the authors' PatchEmbed4_2."""
    torch.manual_seed(1)
    model = small()
    assert isinstance(model, Model)
    ours = {"conv1": "convs.0", "bn1": "convs.1", "conv2": "convs.3", "bn2": "convs.4", "conv3": "convs.6"}
    ours |= {"bn3": "convs.7", "proj": "proj"}
    theirs = {name: torch.randn_like(t).abs() if t.is_floating_point() else t for name, t in model.state_dict().items()}
    for there, here in ours.items():
        for part in ("weight", "bias", "running_mean", "running_var"):
            if f"patch_embed.{here}.{part}" in theirs:
                theirs[f"patch_embed.{there}.{part}"] = theirs.pop(f"patch_embed.{here}.{part}")
    theirs = {name: tensor for name, tensor in theirs.items() if "convs" not in name}
    adopted = adopt(model, theirs)
    assert adopted.kept == tuple(model.state_dict())
    y = x = torch.randn(2, 3, 64, 64)
    for i, (kernel, stride) in enumerate([(7, 2), (3, 1), (3, 1)]):
        y = F.conv2d(y, theirs[f"patch_embed.conv{i + 1}.weight"], stride=stride, padding=kernel // 2)
        mean, var, weight, bias = (
            theirs[f"patch_embed.bn{i + 1}.{part}"][:, None, None]
            for part in ("running_mean", "running_var", "weight", "bias")
        )
        y = torch.relu((y - mean) / (var + 1e-5).sqrt() * weight + bias)
    y = F.conv2d(y, theirs["patch_embed.proj.weight"], theirs["patch_embed.proj.bias"], stride=8)
    assert torch.allclose(model(x).stem, y, rtol=1e-4)


def test_conv_stem_is_its_layers_one_after_another() -> None:
    torch.manual_seed(0)
    stem = ConvStemConfig(filters=6).build(3, (32, 48), 10).eval()
    assert isinstance(stem, ConvStem)
    x = torch.randn(2, 3, 32, 48)
    y = x
    for i, (kernel, stride) in enumerate([(7, 2), (3, 1), (3, 1)]):
        y = F.conv2d(y, stem.convs[3 * i].weight, stride=stride, padding=kernel // 2)
        y = torch.relu(y / (1 + 1e-5) ** 0.5)  # a fresh batch norm in evaluation
    y = F.conv2d(y, stem.proj.weight, stem.proj.bias, stride=8)
    assert torch.allclose(stem(x), y, atol=1e-5)
    assert stem.grid == (2, 3) == tuple(y.shape[2:])


@pytest.mark.parametrize(
    ("kernels", "strides"),
    [
        ((16,), (16,)),
        ((7, 8), (2, 8)),
        ((7, 3, 8), (2, 2, 4)),
        ((7, 3, 8), (2, 1, 8)),
        ((7, 3, 3, 8), (2, 1, 1, 8)),
        ((7, 3, 3, 3, 3, 8), (2, 1, 1, 1, 1, 8)),
    ],
)
def test_rows_of_the_stem_ablation(kernels: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """Table 3 of the supplement: each gives 14x14 tokens."""
    stem = ConvStemConfig(kernels, strides, filters=4).build(3, (224, 224), 8)
    assert stem.grid == (14, 14)
    assert stem(torch.zeros(1, 3, 224, 224)).shape == (1, 8, 14, 14)


@pytest.mark.parametrize("change", [{"strides": [2, 2]}, {"kernels": [], "strides": []}, {"strides": [2, 1, 1, 0]}])
def test_kernels_and_strides_that_do_not_belong_together(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="do not belong together"):
        decode(StemConfig, {**encode(ConvStemConfig()), "name": "conv", **change})


def test_a_grid_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not divide into patches of 16"):
        VitConfig(width=16, depth=1, heads=2, stem=ConvStemConfig()).build(3, (40, 32), 3)
