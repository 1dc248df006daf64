"""Networks by name: sizes, every preset, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from small_models import small
from tilework.core.batch import Mix
from tilework.core.config import decode, encode
from tilework.core.errors import ConfigError
from tilework.layers.stems import PatchStemConfig, TokenF16StemConfig, TokenStemConfig
from tilework.models import (
    ModelConfig,
    Output,
    Resnet,
    ResnetConfig,
    T2tVitConfig,
    Visible,
    Vit,
    VitConfig,
    adopt,
    create_model,
    preset,
    presets,
)

TOKENS = {"input": "tokens", "code_dim": 32, "grid": (28, 28), "pool": "mean"}


class Logits(nn.Module):
    """What an exported graph gives."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).logits


TRACKED = [name for name in presets if not isinstance(presets[name], ResnetConfig)]  # they can follow sources
UNKEPT = [name for name in presets if not isinstance(presets[name], VitConfig | T2tVitConfig)]  # they need every token


@pytest.mark.parametrize(
    ("name", "settings", "count"),
    [
        ("vit_s", TOKENS, 21_952_360),
        ("vit_b", TOKENS, 86_371_048),
        ("deit_s", {}, 22_050_664),
        ("deit_b", {}, 86_567_656),
        ("vit_ti", {}, 5_717_416),
        ("vit_l", {}, 304_326_632),
        ("resnet18", {}, 11_689_512),
        ("resnet50", {}, 25_557_032),
        ("pvt_small", {}, 24_485_864),
        ("pvt_medium", {}, 44_208_104),
        ("pvt_v2_b1", {}, 14_009_000),
        ("pvt_v2_b2", {}, 25_362_856),
        ("t2t_vit_14", {}, 21_545_550),  # 79,744 of them fixed: positions and random features
        ("t2t_vit_19", {}, 39_177_422),
        ("mixer_s16", {}, 18_528_264),
        ("convnext_t", {}, 28_589_128),
        ("swin_t", {}, 28_288_354),
        ("swin_t", {"grid": (512, 512)}, 28_288_354),  # windows of 7 divide none of its maps
        ("swin_s", {}, 49_606_258),
        ("resnet50", {"input": "tokens", "grid": (28, 28), "code_dim": 32}, 25_557_032 + 64 * (32 * 9 - 3 * 49)),
    ],
)
def test_parameter_counts(name: str, settings: dict[str, Any], count: int) -> None:
    with torch.device("meta"):
        model = create_model(name, **settings)
    assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.parametrize("name", list(presets))
def test_every_preset_runs_forward_and_backward(name: str) -> None:
    torch.manual_seed(0)
    model = small(name).build(3, (32, 32), 5)
    out = model(torch.randn(2, 3, 32, 32))
    assert out.logits.shape == (2, 5)
    loss = out.logits.square().sum()
    (loss if out.dense is None else loss + out.dense.square().sum()).backward()
    without = [key for key, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert without == []


@pytest.mark.parametrize("name", list(presets))
def test_every_preset_differs_between_pixels_and_tokens_by_its_stem_alone(name: str) -> None:
    pixels, tokens = small(name).build(3, (32, 32), 5), small(name).for_tokens().build(6, (4, 4), 5)
    assert tokens(torch.randn(2, 6, 4, 4)).logits.shape == (2, 5)
    assert (pixels.takes, tokens.takes) == ("pixels", "map")
    shapes = [{key: tensor.shape for key, tensor in model.state_dict().items()} for model in (pixels, tokens)]
    changed = {key for key in shapes[0].keys() | shapes[1].keys() if shapes[0].get(key) != shapes[1].get(key)}
    assert changed
    assert all(key.startswith(pixels.stem_names) for key in changed)


@pytest.mark.parametrize("name", list(presets))
def test_every_preset_tells_the_depth_of_its_parameters(name: str) -> None:
    model = small(name).build(3, (32, 32), 5)
    depths = {model.layer_of(key) for key, _ in model.named_parameters()}
    assert depths == set(range(model.layers))


@pytest.mark.parametrize("name", list(presets))
def test_every_preset_knows_its_own_weights(name: str) -> None:
    model = small(name).build(3, (32, 32), 5)
    assert adopt(model, model.state_dict()).kept == tuple(model.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("name", list(presets))
def test_every_preset_becomes_an_onnx_graph(name: str, tmp_path: Path) -> None:
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    runtime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model = small(name).build(3, (64, 64), 5).eval()
    for parameter in model.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)  # the head of a Mixer starts at zero
    x = torch.randn(3, 3, 64, 64)
    program = torch.onnx.export(
        Logits(model).eval(), (x,), dynamic_shapes={"x": {0: "batch"}}, dynamo=True, verbose=False
    )
    assert program is not None
    program.save(tmp_path / "model.onnx")
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    for count in (1, 3):
        (logits,) = session.run(None, {session.get_inputs()[0].name: x[:count].numpy()})
        assert torch.allclose(torch.from_numpy(logits), model(x[:count]).logits, atol=1e-4)


@pytest.mark.parametrize("name", TRACKED)
def test_every_share_is_whole_in_half_precision(name: str) -> None:
    torch.manual_seed(0)
    model = small(name).build(3, (64, 64), 5).eval()
    mix = Mix(torch.tensor([1, 0]), (torch.rand(2, 8, 8) < 0.5).float())
    x = torch.randn(2, 3, 64, 64).to(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        share = model(x, mix=mix, track=True).share
    assert share.dtype == torch.float32
    assert torch.allclose(share.sum(1), torch.ones(2), atol=5e-3)


@pytest.mark.parametrize("name", list(presets))
def test_every_preset_classifies_places(name: str) -> None:
    model = small(name).build(3, (64, 32), 5).eval()
    out = model(torch.randn(2, 3, 64, 32))
    assert out.grid == model.grid
    assert out.tokens.shape[:2] == (2, out.grid[0] * out.grid[1])
    assert model.token_logits(out).shape == (2, out.grid[0] * out.grid[1], 5)


@pytest.mark.parametrize("name", UNKEPT)
def test_tokens_that_must_stay_are_not_left_out(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot leave tokens out"):
        small(name).build(3, (32, 32), 5)(torch.randn(1, 3, 32, 32), visible=Visible(torch.zeros(1, 1).long()))


@pytest.mark.parametrize("name", TRACKED)
@pytest.mark.parametrize("training", [True, False])
def test_every_share_is_whole_and_turns_with_the_mixture(name: str, training: bool) -> None:
    torch.manual_seed(0)
    model = small(name).build(3, (64, 64), 5).train(training)
    x = torch.randn(2, 3, 64, 64)

    def run(mix: Mix | None, track: bool = True) -> Output:
        torch.manual_seed(1)  # the same branches are dropped
        return model(x if mix is None or mix.own[0, 0, 0] else x.flip(0), mix=mix, track=track)

    own = torch.zeros(2, 8, 8)
    own[:, :3, :5] = 1
    mix, swapped = Mix(torch.tensor([1, 0]), own, True), Mix(torch.tensor([1, 0]), 1 - own, True)
    alone, mixed, turned = run(None).share, run(mix).share, run(swapped).share
    assert alone is not None
    assert mixed is not None
    assert turned is not None
    assert mixed.dtype == torch.float32
    assert not mixed.requires_grad
    assert torch.allclose(alone, torch.tensor([[1.0, 0.0]] * 2), atol=1e-5)
    assert torch.allclose(mixed.sum(1), torch.ones(2), atol=1e-5)
    assert torch.allclose(mixed, turned.flip(1), atol=1e-5)
    assert torch.allclose(run(mix, track=False).logits, run(mix).logits, atol=1e-5)


@pytest.mark.parametrize("name", list(presets))
def test_every_preset_survives_the_configuration(name: str) -> None:
    assert decode(ModelConfig, encode(presets[name])) == presets[name]


def test_names_of_the_design_are_here() -> None:
    assert {"vit_ti", "vit_s", "vit_b", "vit_l", "deit_ti", "deit_s", "deit_b", "resnet18", "resnet50"} <= set(presets)
    assert {"pvt_small", "pvt_medium", "pvt_v2_b1", "pvt_v2_b2", "swin_t", "swin_s", "t2t_vit_14", "t2t_vit_19"} <= set(
        presets
    )


def test_deit_differs_from_vit_by_drop_path() -> None:
    assert preset("deit_s", drop_path=0.0) == presets["vit_s"]
    assert presets["deit_s"] != presets["vit_s"]


def test_changes_leave_the_preset_alone() -> None:
    assert preset("vit_s", depth=1).depth == 1
    assert presets["vit_s"].depth == 12


@pytest.mark.parametrize(("name", "near"), [("vit_sx", "vit_s"), ("diet_b", "deit_b"), ("vit-l", "vit_l")])
def test_unknown_name_is_refused_with_a_near_one(name: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown model '{name}': did you mean '{near}'"):
        create_model(name)


def test_tokens_without_code_dim_are_refused() -> None:
    with pytest.raises(ConfigError, match="code_dim"):
        create_model("vit_ti", input="tokens", grid=(28, 28))


def test_tokens_on_an_odd_grid_are_refused() -> None:
    with pytest.raises(ConfigError, match="27x27 has no even sides"):
        create_model("vit_ti", input="tokens", grid=(27, 27), code_dim=32)


def test_pixels_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match="100x100"):
        create_model("vit_ti", grid=(100, 100))


def test_token_models_take_maps_and_pixel_models_pixels() -> None:
    tokens = create_model("vit_ti", input="tokens", grid=(8, 8), code_dim=6, classes=3, depth=1)
    pixels = create_model("vit_ti", grid=(32, 32), classes=3, depth=1)
    assert isinstance(tokens, Vit)
    assert isinstance(pixels, Vit)
    assert (tokens.takes, tokens.grid) == ("map", (4, 4))
    assert (pixels.takes, pixels.grid) == ("pixels", (2, 2))
    assert tokens(torch.randn(1, 6, 8, 8)).logits.shape == (1, 3)
    assert tokens.config.stem == TokenStemConfig()


def test_stem_can_be_chosen() -> None:
    model = create_model("vit_ti", grid=(32, 32), classes=3, depth=1, stem=PatchStemConfig(patch=8))
    assert isinstance(model, Vit)
    assert model.grid == (4, 4)


def test_stem_for_f16_tokens_keeps_their_grid() -> None:
    model = create_model(
        "vit_ti", input="tokens", grid=(14, 14), code_dim=8, classes=3, depth=1, stem=TokenF16StemConfig()
    )
    assert isinstance(model, Vit)
    assert (model.takes, model.grid) == ("map", (14, 14))


def test_resnet_for_tokens() -> None:
    model = create_model("resnet50", input="tokens", grid=(28, 28), code_dim=32, classes=3, width=8)
    assert isinstance(model, Resnet)
    assert (model.takes, model.grid) == ("map", (4, 4))


def test_unknown_setting_is_refused_with_a_near_one() -> None:
    with pytest.raises(ConfigError, match="resnet18 has no setting 'dept': did you mean 'depth'"):
        create_model("resnet18", dept=50)


def test_stem_of_a_vit_is_refused_by_a_resnet() -> None:
    with pytest.raises(ConfigError, match="no ResNet with stem"):
        create_model("resnet18", stem=PatchStemConfig())


def test_a_kind_of_input_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="'pixels' or 'tokens'"):
        create_model("vit_ti", input="token", code_dim=32)  # type: ignore[arg-type]
