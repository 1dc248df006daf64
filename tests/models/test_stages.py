"""Maps of every stage, and grids other than the one built for: timm's numbers, every preset, refusals."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from small_models import small
from tilework.core.batch import Mix
from tilework.core.errors import ConfigError
from tilework.layers.positions import sincos_positions
from tilework.layers.stems import PatchStemConfig
from tilework.models import (
    EfficientnetLite0Config,
    MlpMixerConfig,
    Model,
    ModelConfig,
    PvtConfig,
    T2tVitConfig,
    Visible,
    VitConfig,
    adopt,
    create_model,
    preset,
    presets,
)
from tilework.models.model import stage_blocks

STRAIGHT = VitConfig | T2tVitConfig | MlpMixerConfig  # blocks of one width on one grid
CONFIGS = {name: small(name) for name in presets} | {"efficientnet_lite0": EfficientnetLite0Config()}
CONFIGS = {name: replace(c, depth=5) if isinstance(c, STRAIGHT) else c for name, c in CONFIGS.items()}
FIXED = [name for name, config in CONFIGS.items() if isinstance(config, MlpMixerConfig)]
ANY_SIZE = ["resnet18", "resnet50", "efficientnet_lite0"]  # they round up
TRACKED = [name for name in CONFIGS if name not in ANY_SIZE + FIXED]


def make(config: ModelConfig, grid: tuple[int, int] = (64, 64), channels: int = 3) -> Model:
    torch.manual_seed(0)
    model = config.build(channels, grid, 5).eval()
    assert isinstance(model, Model)
    return disturbed(model)


def disturbed(model: Any) -> Any:
    for parameter in model.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)  # heads, biases, norms and tables too
    return model.eval()


def close(found: tuple[Tensor, ...], wanted: list[Tensor]) -> bool:
    return all(torch.allclose(a, b, atol=2e-4, rtol=1e-4) for a, b in zip(found, wanted, strict=True))


# against timm


@pytest.mark.parametrize(
    ("name", "theirs", "indices", "grids"),
    [
        ("vit_ti", "vit_tiny_patch16_224", (2, 5, 8, 11), ((224, 224), (96, 160), (256, 320))),
        ("swin_t", "swin_tiny_patch4_window7_224", (0, 1, 2, 3), ((224, 224), (448, 224))),
        ("pvt_v2_b1", "pvt_v2_b1", (0, 1, 2, 3), ((224, 224), (64, 96))),
        ("convnext_t", "convnext_tiny", (0, 1, 2, 3), ((224, 224), (64, 96))),
        ("resnet18", "resnet18", (1, 2, 3, 4), ((224, 224), (70, 95))),
        ("resnet50", "resnet50", (1, 2, 3, 4), ((64, 96), (224, 64))),
        ("mixer_s16", "mixer_s16_224", (1, 3, 5, 7), ((224, 224),)),
    ],
)
def test_stages_are_those_of_timm(
    timm: Any,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    theirs: str,
    indices: tuple[int, ...],
    grids: tuple[tuple[int, int], ...],
) -> None:
    """timm's forward_intermediates, on the first grid and, with the same weights, on others.

    Positions are resized without smoothing, as DeiT and the published segmenters do. A Swin of timm is built anew for
    each grid, as it would not shift windows where it did not at first.
    """
    vit = timm.models.vision_transformer
    monkeypatch.setattr(vit, "resample_abs_pos_embed", partial(vit.resample_abs_pos_embed, antialias=False))
    torch.manual_seed(0)
    settings = {"dynamic_img_size": True} if name == "vit_ti" else {}
    network = disturbed(timm.create_model(theirs, num_classes=10, **settings))
    ours = create_model(name, grid=grids[0], classes=10).eval()
    assert isinstance(ours, Model)
    assert adopt(ours, network.state_dict()).replaced == ()
    for grid in grids:
        if name == "swin_t":
            weights = network.state_dict()
            network = timm.create_model(theirs, num_classes=10, img_size=grid).eval()
            network.load_state_dict(weights)
        x = torch.randn(1, 3, *grid)
        with torch.no_grad():
            out = ours(x, stages=True)
            wanted = network.forward_intermediates(x, indices=list(indices), intermediates_only=True)
            assert torch.allclose(out.logits, network(x), atol=2e-4)
        assert close(out.stages, wanted)
        assert out.grid == wanted[-1].shape[2:]


def test_stages_of_an_efficientnet_are_those_of_timm(timm: Any) -> None:
    """timm's features_only, whose names are others, in the same order."""
    torch.manual_seed(0)
    ours = make(EfficientnetLite0Config(), (64, 64))
    theirs = timm.create_model("tf_efficientnet_lite0", features_only=True).eval()
    body = [value for key, value in ours.state_dict().items() if not key.startswith(("conv_head", "bn1.", "fc."))]
    theirs.load_state_dict(dict(zip(theirs.state_dict(), body, strict=True)))
    x = torch.randn(1, 3, 70, 96)
    with torch.no_grad():
        assert close(ours(x, stages=True).stages, theirs(x)[1:])


# every preset


@pytest.mark.parametrize("tokens", [False, True], ids=["pixels", "tokens"])
@pytest.mark.parametrize("name", list(CONFIGS))
def test_stages_have_the_promised_widths_and_strides(name: str, tokens: bool) -> None:
    if tokens and name == "efficientnet_lite0":
        pytest.skip("it has no stem for tokens")
    grid, channels = ((16, 8), 6) if tokens else ((64, 32), 3)
    config = CONFIGS[name].for_tokens() if tokens else CONFIGS[name]
    if isinstance(config, PvtConfig):
        config = replace(config, reductions=(4, 2, 1, 1))
    model = make(config, grid, channels)
    x = torch.randn(2, channels, *grid)
    out = model(x, stages=True)
    assert model(x).stages == ()
    assert torch.equal(model(x).logits, out.logits)
    assert len(model.stage_widths) == len(model.stage_strides) == len(out.stages) == 4
    assert sorted(model.stage_strides) == list(model.stage_strides)
    for stage, width, stride in zip(out.stages, model.stage_widths, model.stage_strides, strict=True):
        assert stage.shape == (2, width, grid[0] / stride, grid[1] / stride)


@pytest.mark.parametrize("name", list(CONFIGS))
def test_gradients_reach_the_stem_from_every_stage(name: str) -> None:
    model = make(CONFIGS[name])
    out = model(torch.randn(2, 3, 64, 64), stages=True)
    stem = [p for key, p in model.named_parameters() if key.startswith(model.stem_names) and p.requires_grad]
    for stage in out.stages:
        slopes = torch.autograd.grad((stage * torch.randn_like(stage)).sum(), stem, retain_graph=True)
        assert all(slope.abs().max() > 0 for slope in slopes)


@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in FIXED])
@pytest.mark.parametrize("grid", [(96, 64), (64, 128)])
def test_another_grid_gives_what_a_network_built_for_it_gives(name: str, grid: tuple[int, int]) -> None:
    """The oracle is `adopt`, which resizes positions between networks; Swin pads 3x2 tokens to windows of 2x2."""
    model, rebuilt = make(CONFIGS[name]), make(CONFIGS[name], grid)
    assert adopt(rebuilt, model.state_dict()).replaced == ()
    x = torch.randn(2, 3, *grid)
    with torch.no_grad():
        out, wanted = model(x, stages=True), rebuilt(x, stages=True)
    assert out.grid == wanted.grid == rebuilt.grid != model.grid
    assert torch.allclose(out.logits, wanted.logits, atol=1e-5)
    assert torch.allclose(out.tokens, wanted.tokens, atol=1e-5)
    assert close(out.stages, list(wanted.stages))
    assert model.token_logits(out).shape == (2, out.grid[0] * out.grid[1], 5)


@pytest.mark.parametrize("name", TRACKED)
def test_sources_are_followed_on_another_grid(name: str) -> None:
    model, grid = make(CONFIGS[name]), (64, 128)
    own = (torch.rand(2, 16, 32) < 0.5).float()
    share = model(torch.randn(2, 3, *grid), mix=Mix(torch.tensor([1, 0]), own, after_stem=True), track=True).share
    assert share is not None
    assert torch.allclose(share.sum(1), torch.ones(2), atol=1e-5)
    assert ((share > 0.2) & (share < 0.8)).all()


@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in ANY_SIZE])
def test_sizes_that_do_not_divide_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(ConfigError, match="a grid of 66x64 does not divide into patches of ") as error:
        make(CONFIGS[name])(torch.randn(1, 3, 66, 64))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("swin_t", "a map of 9x8 cannot be halved"),
        ("convnext_t", "a map of 9x8 cannot be halved"),
        ("pvt_small", "a map of 18x16 does not divide into windows of 8"),
        ("pvt_v2_b1", "a map of 18x16 does not divide into windows of 8"),
    ],
)
def test_maps_that_cannot_be_halved_are_refused_in_one_line(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        make(CONFIGS[name])(torch.randn(1, 3, 72, 64))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", FIXED)
def test_weights_for_each_position_fit_no_other_grid(name: str) -> None:
    with pytest.raises(ConfigError, match="an MLP-Mixer has weights for each position of 4x4, not 6x4"):
        make(CONFIGS[name])(torch.randn(1, 3, 96, 64))


# networks of one width


@pytest.mark.parametrize(
    ("depth", "blocks"),
    [
        (12, (2, 5, 8, 11)),
        (16, (3, 7, 11, 15)),
        (24, (5, 11, 17, 23)),
        (14, (3, 6, 10, 13)),
        (4, (0, 1, 2, 3)),
        (2, (0, 0, 1, 1)),
        (1, (0, 0, 0, 0)),
    ],
)
def test_stages_end_with_each_quarter_of_the_blocks(depth: int, blocks: tuple[int, ...]) -> None:
    assert stage_blocks(depth) == blocks


@pytest.mark.parametrize("name", ["lv_vit_t", "t2t_vit_14", "pvt_small"])
def test_stages_are_what_blocks_give_before_the_last_norm(name: str) -> None:
    """timm has none of these: hooks on the blocks are the oracle."""
    model = make(CONFIGS[name])
    seen: dict[str, Tensor] = {}
    for key, module in model.named_modules():
        module.register_forward_hook(lambda _, given, gave, key=key: seen.update({key: gave}))
    stages = model(torch.randn(2, 3, 64, 64), stages=True).stages
    straight = [f"blocks.{i}" for i in stage_blocks(5)]
    names = [f"block{i}.{j}" for i, j in ((1, 0), (2, 1), (3, 0), (4, 0))] if name == "pvt_small" else straight
    for stage, key in zip(stages, names, strict=True):
        tokens = seen[key][0]
        tokens = tokens[:, tokens.shape[1] - stage.shape[2] * stage.shape[3] :]  # a class token stands first
        assert torch.equal(stage.flatten(2).mT, tokens)


def test_stages_come_after_the_moto_of_a_block() -> None:
    model = make(VitConfig(width=16, depth=4, heads=2, moto_blocks=1))
    seen: list[Tensor] = []
    model.get_submodule("motos.0").register_forward_hook(lambda _, given, gave: seen.append(gave))
    x = torch.randn(2, 3, 64, 64)
    assert torch.equal(model(x, stages=True).stages[0], seen[0])
    assert model(torch.randn(2, 3, 64, 96), stages=True).stages[0].shape == seen[-1].shape == (2, 16, 4, 6)


def test_fixed_positions_are_computed_for_the_grid_at_hand() -> None:
    """The oracle: the same weights with learnt positions that hold the sines of the other grid."""
    fixed = VitConfig(width=16, depth=2, heads=2, positions="sincos", stem=PatchStemConfig(8))
    torch.manual_seed(0)
    small_one, large = (
        fixed.build(3, (32, 32), 5).eval(),
        replace(fixed, positions="learnt").build(3, (40, 24), 5).eval(),
    )
    weights = small_one.state_dict()
    weights["pos_embed"] = torch.cat([torch.zeros(1, 1, 16), sincos_positions(16, 5, 3)[None]], 1)
    large.load_state_dict(weights)
    x = torch.randn(2, 3, 40, 24)
    assert torch.equal(small_one(x).logits, large(x).logits)


@pytest.mark.parametrize("name", ["vit_ti", "t2t_vit_14"])
def test_visible_tokens_alone_give_no_maps(name: str) -> None:
    with pytest.raises(ConfigError, match="tokens that are left out leave no maps"):
        make(CONFIGS[name])(torch.randn(1, 3, 64, 64), visible=Visible(torch.zeros(1, 1).long()), stages=True)


# networks of others, graphs


def test_networks_of_timm_refuse(timm: Any) -> None:
    model = preset("timm:resnet18").build(3, (64, 64), 5)
    with pytest.raises(ConfigError, match="timm: models do not give the maps of their stages: use a model of ours"):
        model(torch.randn(1, 3, 64, 64), stages=True)
    with pytest.raises(ConfigError, match="a timm: model for 64x64 px gets 64x96"):
        model(torch.randn(1, 3, 64, 96))


class Stages(nn.Module):
    """What a dense head would export."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.model(x, stages=True).stages


FAMILIES = ["vit_ti", "lv_vit_t", "t2t_vit_14", "swin_t", "pvt_small", "pvt_v2_b1", "resnet18", "convnext_t"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_stages_become_an_onnx_graph_on_another_grid(name: str, tmp_path: Path) -> None:
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    runtime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model, x = Stages(CONFIGS[name].build(3, (64, 64), 5)).eval(), torch.randn(3, 3, 96, 64)
    program = torch.onnx.export(model, (x,), dynamic_shapes={"x": {0: "batch"}}, dynamo=True, verbose=False)
    assert program is not None
    program.save(tmp_path / "model.onnx")
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    for count in (1, 3):
        found = session.run(None, {session.get_inputs()[0].name: x[:count].numpy()})
        assert close(tuple(map(torch.from_numpy, found)), list(model(x[:count])))
