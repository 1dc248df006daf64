"""ResNets: the same numbers as timm's, their grids, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tilework.core.batch import Mix
from tilework.core.errors import ConfigError
from tilework.models import Resnet, ResnetConfig, create_model


def make(grid: tuple[int, int] = (32, 32), channels: int = 3, classes: int = 5, **changes: Any) -> Resnet:
    torch.manual_seed(0)
    return ResnetConfig(**{"depth": 18, "width": 8, **changes}).build(channels, grid, classes).eval()


def disturb_norms(model: nn.Module) -> None:
    """Batch norms with statistics and scales of their own, so that each matters."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight.data, module.running_var):
                tensor.uniform_(0.5, 1.5)
            for tensor in (module.bias.data, module.running_mean):
                tensor.normal_(std=0.1)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_logits_are_those_of_timm(timm: Any, name: str) -> None:
    torch.manual_seed(0)
    theirs = timm.create_model(name, num_classes=10).eval()
    disturb_norms(theirs)
    ours = create_model(name, grid=(64, 96), classes=10).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        out = ours(x)
        assert torch.allclose(out.logits, theirs(x), atol=1e-4)
        features = theirs.forward_features(x)
    assert out.grid == features.shape[2:] == (2, 3)
    assert torch.allclose(out.tokens, features.flatten(2).transpose(1, 2), atol=1e-4)
    assert list(ours.state_dict()) == list(theirs.state_dict())


@pytest.mark.parametrize("depth", [18, 50])
@pytest.mark.parametrize(("stem", "grid"), [("image", (33, 70)), ("token", (28, 28)), ("token", (9, 14))])
def test_grid_is_the_one_of_the_last_map(depth: int, stem: str, grid: tuple[int, int]) -> None:
    model = make(grid, depth=depth, stem=stem)
    out = model(torch.randn(1, 3, *grid))
    assert out.grid == model.grid
    assert out.tokens.shape == (1, model.grid[0] * model.grid[1], model.fc.in_features)


def test_token_stem_keeps_the_code_grid_and_the_image_stem_quarters_it() -> None:
    assert make((28, 20), channels=6, stem="token")(torch.randn(1, 6, 28, 20)).stem.shape == (1, 8, 28, 20)
    assert make((64, 32))(torch.randn(1, 3, 64, 32)).stem.shape == (1, 8, 16, 8)


def test_without_classes_the_logits_are_the_representation() -> None:
    assert make(classes=0)(torch.randn(2, 3, 32, 32)).logits.shape == (2, 64)


def test_mix_after_the_stem_swaps_stem_maps() -> None:
    model, x = make((8, 8), stem="token"), torch.randn(2, 3, 8, 8)
    own = torch.ones(2, 4, 4)
    own[:, :, :2] = 0  # a coarser mask: the left half comes from the partner
    out = model(x, mix=Mix(torch.tensor([1, 0]), own, after_stem=True))
    stem = model(x).stem
    swapped = torch.cat([stem[[1, 0]][..., :4], stem[..., 4:]], 3)
    features = swapped
    for i in range(1, 5):
        features = model.get_submodule(f"layer{i}")(features)
    assert torch.equal(out.stem, stem)
    assert torch.allclose(out.tokens, features.flatten(2).transpose(1, 2), atol=1e-5)


def test_mix_of_the_input_does_not_mix_again() -> None:
    model, x = make(), torch.randn(2, 3, 32, 32)
    mix = Mix(torch.tensor([1, 0]), torch.full((2, 32, 32), 0.5))
    assert torch.equal(model(x, mix=mix).logits, model(x).logits)


@pytest.mark.parametrize(
    ("settings", "words"), [({"visible": torch.zeros(1, 1).long()}, "whole maps"), ({"track": True}, "no attention")]
)
def test_what_needs_tokens_is_refused(settings: dict[str, Tensor], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()(torch.randn(1, 3, 32, 32), **settings)


def test_layers_are_stem_blocks_head() -> None:
    model = make(depth=50)
    assert model.layers == 18
    depths = {name: model.layer_of(name) for name, _ in model.named_parameters()}
    assert depths["conv1.weight"] == depths["bn1.bias"] == 0
    assert depths["layer1.0.conv1.weight"] == depths["layer1.0.downsample.1.bias"] == 1
    assert depths["layer2.0.bn1.weight"] == 4
    assert depths["layer4.2.conv3.weight"] == 16
    assert depths["fc.weight"] == 17


def test_unknown_depth_is_refused() -> None:
    with pytest.raises(ConfigError, match="no ResNet of depth 34"):
        make(depth=34)
