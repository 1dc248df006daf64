"""The small ViT-VQ: shapes, codes, patches in their places, and a start at the quality of k-means on patches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.core.batch import Batch, Target
from tilework.core.config import decode
from tilework.core.errors import ConfigError, InputError
from tilework.core.rng import Draws
from tilework.layers.positions import sincos_positions
from tilework.models import ModelConfig
from tilework.objectives import ReconstructConfig
from tilework.tokenizers import VitVq, VitVqConfig
from tilework.tokenizers.kmeans import kmeans, squared_distances


def make(**changes: Any) -> VitVq:
    torch.manual_seed(0)
    settings = {
        "patch": 4,
        "codes": 30,
        "code_dim": 6,
        "width": 16,
        "depth": 1,
        "heads": 2,
        "mixing": "attention",
        **changes,
    }
    return VitVqConfig(**settings).build(3, (0, 0), 0).eval()


def awake(model: VitVq) -> VitVq:
    """The blocks' last layers away from zero, where they start."""
    for layer in (model.to_code[1], model.to_pixels[1]):
        torch.nn.init.normal_(layer.weight, std=0.1)
    return model


def images(height: int, width: int, batch: int = 2) -> Tensor:
    return torch.rand(batch, 3, height, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("height", "width"), [(16, 16), (12, 20), (20, 12), (4, 4)])
def test_shapes(height: int, width: int) -> None:
    model = make()
    ids = model.encode(images(height, width))
    assert ids.shape == (2, height // 4, width // 4)
    assert ids.dtype == torch.int64
    assert 0 <= ids.min() <= ids.max() < 30
    pixels = model.decode(ids)
    assert pixels.shape == (2, 3, height, width)
    assert 0 <= pixels.min() <= pixels.max() <= 1


def test_decoded_pixels_are_clipped() -> None:
    model = make()
    with torch.no_grad():
        model.to_pixels[1].bias.fill_(50.0)
    assert model.decode(torch.zeros(1, 2, 2, dtype=torch.int32)).eq(1).all()


def test_codebook_has_unit_norm_by_cosine() -> None:
    model = make(cosine=True)
    with torch.no_grad():
        model.quantiser.table.mul_(torch.rand(30, 1) * 5 + 0.1)  # training changes lengths
    assert torch.allclose(model.codebook.norm(dim=1), torch.ones(30), atol=1e-6)
    assert model.codebook.shape == (30, 6)


def test_features_have_unit_norm_by_cosine() -> None:
    features = make(cosine=True).features(images(8, 12))
    assert features.shape == (2, 2, 3, 6)
    assert torch.allclose(features.norm(dim=-1), torch.ones(2, 2, 3), atol=1e-5)


def test_nearest_is_the_highest_cosine() -> None:
    model = make(cosine=True)
    with torch.no_grad():
        model.quantiser.table.mul_(torch.rand(30, 1) * 5 + 0.1)
    vectors = torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(2))
    found = model.nearest(vectors).flatten()
    for vector, code in zip(vectors.view(-1, 6), found.tolist(), strict=True):
        cosines = [F.cosine_similarity(vector, entry, dim=0).item() for entry in model.quantiser.table]
        assert cosines[code] == pytest.approx(max(cosines), abs=1e-6)


def test_nearest_is_the_shortest_distance() -> None:
    model = make()
    vectors = torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(2))
    found = model.nearest(vectors).flatten()
    for vector, code in zip(vectors.view(-1, 6), found.tolist(), strict=True):
        distances = [(vector - entry).square().sum().item() for entry in model.codebook]
        assert distances[code] == pytest.approx(min(distances), abs=1e-5)


def test_start_is_the_quality_of_kmeans_on_patches() -> None:
    """Oracle: k-means on raw patches, decoded to its centres."""
    model = make(code_dim=48, codes=20)
    x = images(32, 32, batch=12)
    x = F.avg_pool2d(x, 5, stride=1, padding=2)
    torch.manual_seed(5)
    model.start(x)
    with torch.no_grad():
        features = model.features(x).flatten(0, 2)
        model.quantiser.table.copy_(kmeans(features, 20, 30))
    patches = F.unfold(x, 4, stride=4).transpose(1, 2).flatten(0, 1)
    assert features.std().item() == pytest.approx(1, abs=0.01)
    assert torch.allclose(model.pixels(model.features(x)), x, atol=1e-4)  # nothing is lost without codes
    centres = kmeans(patches, 20, 30)
    expected = squared_distances(patches, centres).min(1).values.mean() / 48
    found = (model.decode(model.encode(x)) - x).square().mean()
    assert found.item() == pytest.approx(expected.item(), rel=0.05)


@pytest.mark.parametrize("cosine", [False, True])
def test_code_vectors_are_their_own_nearest(cosine: bool) -> None:
    model = make(cosine=cosine)
    assert torch.equal(model.nearest(model.codebook), torch.arange(30))


def test_encode_is_nearest_of_features() -> None:
    model, x = make(), images(12, 16)
    assert torch.equal(model.encode(x), model.nearest(model.features(x)))


@pytest.mark.parametrize(("height", "width"), [(10, 16), (16, 10), (3, 4)])
def test_encode_refuses_sizes_that_do_not_divide(height: int, width: int) -> None:
    with pytest.raises(InputError, match=f"{height}x{width} do not divide into 4 px"):
        make().encode(images(height, width))


def test_decoded_patches_lie_in_their_places() -> None:
    model = awake(make(depth=0))  # without blocks every patch depends on its own code only
    ids = torch.randint(30, (2, 2, 3), generator=torch.Generator().manual_seed(3))
    pixels, positions = model.decode(ids), sincos_positions(16, 2, 3)
    for i in range(2):
        for row in range(2):
            for column in range(3):
                token = model.from_code(model.codebook[ids[i, row, column]]) + positions[3 * row + column]
                straight = model.straight_out(model.codebook[ids[i, row, column]])
                patch = (straight + model.to_pixels(token)).view(3, 4, 4)
                found = pixels[i, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
                assert torch.allclose(found, patch.clamp(0, 1), atol=1e-5)


def test_features_lie_in_their_places() -> None:
    model, x = make(depth=0), images(8, 12)
    other = x.clone()
    other[:, :, 4:8, 8:12] = 1 - other[:, :, 4:8, 8:12]  # the patch in row 1, column 2
    changed = (model.features(x) - model.features(other)).abs().amax((0, 3)) > 1e-4
    assert changed.tolist() == [[False, False, False], [False, False, True]]


def test_blocks_let_patches_see_each_other() -> None:
    model, x = awake(make(depth=1)), images(8, 12)
    other = x.clone()
    other[:, :, 4:8, 8:12] = 1 - other[:, :, 4:8, 8:12]
    assert ((model.features(x) - model.features(other)).abs().amax((0, 3)) > 0).all()


def test_gradient_reaches_encoder_and_decoder() -> None:
    model = make()
    features = model.features(images(8, 8))
    model.pixels(features).sum().backward()
    without = [name for name, p in model.named_parameters() if p.grad is None]
    assert without == ["quantiser.embedding.weight"]  # quantisation was left out


SCALAR: list[dict[str, Any]] = [
    {"quantiser": "fsq", "levels": (8, 6, 5), "codes": 240, "code_dim": 3},
    {"quantiser": "lfq", "codes": 64, "code_dim": 6},
]


@pytest.mark.parametrize("settings", SCALAR, ids=lambda s: s["quantiser"])
def test_scalar_quantisers_learn_and_use_their_codes(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = VitVqConfig(patch=4, width=16, depth=1, heads=2, **settings).build(3, (0, 0), 0)
    coarse = torch.rand(16, 3, 4, 4)
    batch = Batch(
        F.interpolate(coarse, (16, 16), mode="bilinear"), Target.hard(torch.zeros(16).long()), torch.arange(16)
    )
    objective = ReconstructConfig(commitment=0.02).build(model)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    losses, used = [], []
    for step in range(40):
        out = objective(batch, Draws(0, 0, batch.index, step))
        optimiser.zero_grad()
        out["loss"].backward()
        optimiser.step()
        losses.append(out["mse"].item())
        used.append(out["perplexity"].item())
    assert losses[-1] < 0.7 * losses[0]
    assert used[-1] > 8  # of 240 or 64: no codebook that could collapse
    assert torch.equal(model.encode(batch.x), model.quantiser.nearest(model.features(batch.x)))
    assert model.codebook.shape == (settings["codes"], settings["code_dim"])


@pytest.mark.parametrize(
    "settings",
    [
        {"quantiser": "fsq", "levels": (8, 5), "codes": 41, "code_dim": 2},
        {"quantiser": "fsq", "codes": 40, "code_dim": 2},
        {"quantiser": "lfq", "codes": 63, "code_dim": 6},
        {"quantiser": "lfq", "codes": 64, "code_dim": 6, "cosine": True},
    ],
)
def test_settings_of_scalar_quantisers_must_agree(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        VitVqConfig(**settings).build(3, (0, 0), 0)


@pytest.mark.parametrize("setting", ["patch", "codes", "code_dim", "width", "heads"])
@pytest.mark.parametrize("value", [0, -1, -2])
def test_sizes_below_one_are_refused(setting: str, value: int) -> None:
    """Two groups less than none divide every width."""
    with pytest.raises(ConfigError, match="at least 1"):
        decode(ModelConfig, {"name": "vit_vq", setting: value})
