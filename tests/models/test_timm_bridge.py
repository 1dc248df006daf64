"""Networks of timm behind our interface."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from tilework.core.batch import Mix
from tilework.core.config import decode, encode
from tilework.core.errors import ConfigError, MachineError
from tilework.models import ModelConfig, TimmConfig, TimmModel, adopt, create_model, preset


@pytest.mark.parametrize(
    ("name", "size", "grid", "last"),
    [
        ("vit_tiny_patch16_224", (64, 96), (4, 6), (0, -1)),  # tokens behind a class token
        ("resnet18", (64, 96), (2, 3), (0, slice(None), -1, -1)),  # channels first
        ("swin_tiny_patch4_window7_224", (224, 224), (7, 7), (0, -1, -1)),  # channels last
    ],
)
def test_any_layout_gives_logits_and_tokens(
    timm: Any, name: str, size: tuple[int, int], grid: tuple[int, int], last: tuple[Any, ...]
) -> None:
    torch.manual_seed(0)
    model = create_model(f"timm:{name}", grid=size, classes=10)
    assert isinstance(model, TimmModel)
    assert model.training
    x = torch.randn(1, 3, *size)
    with torch.no_grad():
        out, logits = model.eval()(x), model.network(x)
        features = model.network.forward_features(x)
    assert torch.equal(out.logits, logits)
    assert out.grid == model.grid == grid
    assert out.tokens.shape == (1, grid[0] * grid[1], model.network.num_features)
    assert out.stem.shape == (1, model.network.num_features, *grid)
    corner = features[last]
    assert torch.equal(out.tokens[0, -1], corner)
    assert torch.equal(out.stem[0, :, -1, -1], corner)
    assert {model.layer_of(key) for key, _ in model.named_parameters()} == set(range(model.layers))
    assert model.layer_of("network." + timm.models.get_pretrained_cfg(name).first_conv + ".weight") == 0


def test_name_is_short_for_the_settings() -> None:
    assert preset("timm:resnet18", drop_path=0.1) == TimmConfig(model="resnet18", drop_path=0.1)
    assert decode(ModelConfig, encode(preset("timm:resnet18"))) == TimmConfig(model="resnet18")


def test_drop_path_reaches_the_network(timm: Any) -> None:
    model = create_model("timm:vit_tiny_patch16_224", grid=(32, 32), classes=0, drop_path=0.2)
    assert isinstance(model, TimmModel)
    assert model.network.blocks[-1].drop_path1.drop_prob == pytest.approx(0.2)


def test_nothing_is_downloaded(timm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    create = timm.create_model
    monkeypatch.setattr(
        timm, "create_model", lambda name, **settings: asked.append(settings) or create(name, **settings)
    )
    create_model("timm:resnet18", grid=(32, 32), classes=2)
    assert [settings["pretrained"] for settings in asked] == [False]
    with pytest.raises(ConfigError, match="timm has no model 'hf-hub:timm/resnet18'"):
        create_model("timm:hf-hub:timm/resnet18")


def test_checkpoints_of_timm_load_under_their_own_names(timm: Any) -> None:
    theirs = timm.create_model("resnet18", num_classes=7)
    model = create_model("timm:resnet18", grid=(32, 32), classes=3)
    assert isinstance(model, TimmModel)
    adopted = adopt(model, theirs.state_dict())
    assert adopted.replaced == ("network.fc.weight", "network.fc.bias")
    assert torch.equal(model.network.layer4[1].conv2.weight, theirs.layer4[1].conv2.weight)
    assert adopt(model, model.state_dict()).replaced == ()


def test_what_timm_cannot_do_is_refused(timm: Any) -> None:
    model, x = create_model("timm:resnet18", grid=(32, 32), classes=2), torch.randn(2, 3, 32, 32)
    mix = Mix(torch.tensor([1, 0]), torch.ones(2, 4, 4), after_stem=True)
    for settings in ({"mix": mix}, {"visible": torch.zeros(2, 1).long()}, {"track": True}):
        with pytest.raises(ConfigError, match="timm: models cannot"):
            model(x, **settings)
    with pytest.raises(ConfigError, match="timm has no stem for tokens"):
        create_model("timm:resnet18", input="tokens", code_dim=4, grid=(8, 8))
    with pytest.raises(ConfigError, match="did you mean resnet18"):
        create_model("timm:resnet81")
    with pytest.raises(ConfigError, match="cannot build vit_tiny_patch16_224 for 8x8 px"):
        create_model("timm:vit_tiny_patch16_224", grid=(8, 8))


def test_absent_timm_is_a_matter_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MachineError, match=r"pip install 'tilework\[timm\]'"):
        create_model("timm:resnet18")


def test_timm_that_breaks_on_import_is_a_matter_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> ModuleType:
        raise RuntimeError("operator torchvision::nms\ndoes not exist")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(MachineError, match="operator torchvision::nms does not exist"):
        create_model("timm:resnet18")
