"""LPIPS on VGG-16. Oracle: the sum over stages written as loops; real weights were tried outside the tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from tilework.core.errors import DamageError, InputError
from tilework.objectives import ReconstructConfig
from tilework.objectives.perceptual import STAGES, Perceptual, _shapes
from tilework.tokenizers import VitVqConfig


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    tensors = {name: torch.randn(shape) for name, shape in _shapes().items()}
    for name, tensor in tensors.items():
        if tensor.ndim == 4:
            tensors[name] = tensor / (tensor[0].numel() ** 0.5)
        tensors[name] = tensors[name].abs() if name.startswith("NetLin") else tensors[name]
    path = tmp_path_factory.mktemp("vgg") / "lpips.safetensors"
    save_file(tensors, path)
    return path


def slow(a: Tensor, b: Tensor, network: Perceptual) -> float:
    """One pair, place by place."""
    w = dict(network.named_buffers())

    def stages(x: Tensor) -> list[Tensor]:
        x = torch.stack(
            [(x[c] - m) / s for c, m, s in zip(range(3), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), strict=True)]
        )
        found, layer, x = [], 0, x[None]
        for stage, widths in enumerate(STAGES):
            if stage:
                x = F.max_pool2d(x, 2)
            for _ in widths:
                x = F.relu(F.conv2d(x, w[f"VGG16_0_Conv_{layer}_kernel"], w[f"VGG16_0_Conv_{layer}_bias"], padding=1))
                layer += 1
            found.append(x[0])
        return found

    total = 0.0
    for stage, (x, y) in enumerate(zip(stages(a), stages(b), strict=True)):
        weight = w[f"NetLinLayer_{stage}_Conv_0_kernel"].flatten()
        places = []
        for row in range(x.shape[1]):
            for column in range(x.shape[2]):
                u, v = x[:, row, column], y[:, row, column]
                u, v = u / (u.norm() + 1e-10), v / (v.norm() + 1e-10)
                places.append(float((weight * (u - v) ** 2).sum()))
        total += sum(places) / len(places)
    return total


def test_distance_is_the_slow_formula(weights: Path) -> None:
    network = Perceptual.load(weights)
    a, b = torch.rand(2, 3, 16, 16), torch.rand(2, 3, 16, 16)
    found = network(a, b)
    for i in range(2):
        assert found[i].item() == pytest.approx(slow(a[i], b[i], network), rel=1e-3)
    assert network(a, a).tolist() == [0, 0]


def test_nothing_of_it_is_trained_or_saved(weights: Path) -> None:
    model = VitVqConfig(patch=4, codes=8, code_dim=4, width=16, depth=1, heads=2).build(3, (16, 16), 0)
    objective = ReconstructConfig(perceptual=0.5, perceptual_weights=str(weights)).build(model)
    assert not any("perceptual" in name for name in objective.state_dict())
    assert not list(objective.perceptual.parameters())  # type: ignore[union-attr]


def test_files_that_cannot_be_used(weights: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file"):
        Perceptual.load(tmp_path / "nowhere")
    (tmp_path / "x.safetensors").write_bytes(b"no")
    with pytest.raises(DamageError):
        Perceptual.load(tmp_path / "x.safetensors")
    save_file({"VGG16_0.Conv_0.kernel": torch.zeros(2, 2)}, tmp_path / "y.safetensors")
    with pytest.raises(InputError, match=r"VGG16_0\.Conv_0\.kernel"):
        Perceptual.load(tmp_path / "y.safetensors")
