"""Networks by name: sizes, every preset, refusals."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch

from tilework.core.config import decode, encode
from tilework.core.errors import ConfigError
from tilework.layers.stems import PatchStemConfig, TokenStemConfig
from tilework.models import ModelConfig, Vit, create_model, preset, presets

TOKENS = {"input": "tokens", "code_dim": 32, "grid": (28, 28), "pool": "mean"}


def small(name: str) -> ModelConfig:
    """A preset with its shape cut down as far as it has one."""
    known = {field.name for field in fields(presets[name])}
    changes: dict[str, Any] = {"depth": 1, "width": 16, "heads": 2}
    return preset(name, **{key: value for key, value in changes.items() if key in known})


@pytest.mark.parametrize(
    ("name", "settings", "count"),
    [
        ("vit_s", TOKENS, 21_952_360),
        ("vit_b", TOKENS, 86_371_048),
        ("deit_s", {}, 22_050_664),
        ("deit_b", {}, 86_567_656),
        ("vit_ti", {}, 5_717_416),
        ("vit_l", {}, 304_326_632),
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
    out.logits.square().sum().backward()
    without = [key for key, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert without == []


@pytest.mark.parametrize("name", list(presets))
def test_every_preset_tells_the_depth_of_its_parameters(name: str) -> None:
    model = small(name).build(3, (32, 32), 5)
    depths = {model.layer_of(key) for key, _ in model.named_parameters()}
    assert depths == set(range(model.layers))


@pytest.mark.parametrize("name", list(presets))
def test_every_preset_survives_the_configuration(name: str) -> None:
    assert decode(ModelConfig, encode(presets[name])) == presets[name]


def test_names_of_the_design_are_here() -> None:
    assert {"vit_ti", "vit_s", "vit_b", "vit_l", "deit_ti", "deit_s", "deit_b"} <= set(presets)


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
    with pytest.raises(ConfigError, match="27x27 cannot be halved"):
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
