"""Corruptions against formulas written with scikit-image, scipy and plain loops, on the same draws.

The same was run beside imagecorruptions-imaug 1.1.5 and ImageNet-C's own file (docs/parity.md).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tilework.core.errors import ConfigError, InputError
from tilework.core.rng import Draws
from tilework.evaluation import corruptions as ours
from tilework.evaluation.corruptions import glass, noise, spatter, weather
from tilework.evaluation.noise import Noise

ndimage = pytest.importorskip("scipy.ndimage")
skimage_color = pytest.importorskip("skimage.color")
skimage_data = pytest.importorskip("skimage.data")


def photographs(side: int = 64) -> np.ndarray:
    """Two photographs, (2, side, side, 3) uint8."""
    pictures = (skimage_data.astronaut(), skimage_data.coffee()[:, :400])
    return np.stack([np.asarray(Image.fromarray(p).resize((side, side), Image.Resampling.BICUBIC)) for p in pictures])


def as_tensor(x: np.ndarray) -> Tensor:
    return torch.from_numpy(x).permute(0, 3, 1, 2).contiguous()


def apply(name: str, severity: int, x: np.ndarray, drawn: object = None, scale: float = 1.0) -> np.ndarray:
    kind = ours.CORRUPTIONS[name]
    made = ours.to_bytes(kind.apply(as_tensor(x), kind.severities[severity - 1], drawn, scale))
    return made.permute(0, 2, 3, 1).numpy()


def bytes_of(y: np.ndarray) -> np.ndarray:
    return np.uint8(np.clip(y, 0, 1) * 255 + 1e-6)


def near(a: np.ndarray, b: np.ndarray, grey: int = 1) -> None:
    assert np.abs(a.astype(int) - b.astype(int)).max() <= grey


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_blurs_without_draws(severity: int) -> None:
    x = photographs()
    sd = (1, 2, 3, 4, 6)[severity - 1]
    near(apply("gaussian_blur", severity, x),
         bytes_of(ndimage.gaussian_filter(x / 255, (0, sd, sd, 0), mode="nearest")))  # fmt: skip
    radius, smooth = ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))[severity - 1]
    half, reach = (8, 1) if radius <= 8 else (radius, 2)
    places = np.arange(-half, half + 1)
    disk = (places[:, None] ** 2 + places**2 <= radius**2).astype(float)
    taps = np.exp(-0.5 * (np.arange(-reach, reach + 1) / smooth) ** 2)
    kernel = np.pad(disk / disk.sum(), reach, mode="reflect")
    for axis in (0, 1):
        kernel = np.apply_along_axis(lambda v: np.convolve(v, taps / taps.sum(), "valid"), axis, kernel)
    near(
        apply("defocus_blur", severity, x), bytes_of(ndimage.convolve(x / 255, kernel[None, ..., None], mode="mirror"))
    )


@pytest.mark.parametrize("severity", [1, 5])
def test_zoom_blur(severity: int) -> None:
    x = photographs()
    end, step = ((1.11, 0.01), None, None, None, (1.31, 0.03))[severity - 1]  # type: ignore[misc]
    factors = np.arange(1, end, step)
    for image, made in zip(x / 255, apply("zoom_blur", severity, x), strict=True):
        total = image.copy()
        for factor in factors:
            cut = int(np.ceil(64 / factor))
            top = (64 - cut) // 2
            grown = ndimage.zoom(image[top : top + cut, top : top + cut], (factor, factor, 1), order=1)
            trim = (len(grown) - 64) // 2
            total += grown[trim : trim + 64, trim : trim + 64]
        near(made, bytes_of(total / (len(factors) + 1)))


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_light_and_colour(severity: int) -> None:
    x = photographs()
    x[0, :4], x[0, 4:8] = 0, 99  # black and grey have no hue
    hsv = skimage_color.rgb2hsv(x / 255)
    brighter, coloured = hsv.copy(), hsv.copy()
    brighter[..., 2] = np.clip(hsv[..., 2] + (0.1, 0.2, 0.3, 0.4, 0.5)[severity - 1], 0, 1)
    near(apply("brightness", severity, x), bytes_of(skimage_color.hsv2rgb(brighter)))
    a, b = ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2))[severity - 1]
    coloured[..., 1] = np.clip(hsv[..., 1] * a + b, 0, 1)
    near(apply("saturate", severity, x), bytes_of(skimage_color.hsv2rgb(coloured)))
    mean = (x / 255).mean((1, 2), keepdims=True)
    c = (0.4, 0.3, 0.2, 0.1, 0.05)[severity - 1]
    near(apply("contrast", severity, x), bytes_of((x / 255 - mean) * c + mean))


def test_glass_blur_is_that_of_pixels_in_sequence() -> None:
    x, rng = photographs(24), np.random.default_rng(0)
    sd, reach, rounds = ours.CORRUPTIONS["glass_blur"].severities[2]
    visits = (24 - 2 * reach) ** 2
    moves = rng.integers(0, 4 * reach**2, (2, rounds, visits))
    slow = np.uint8(np.clip(ndimage.gaussian_filter(x / 255, (0, sd, sd, 0), mode="nearest"), 0, 1) * 255 + 1e-3)
    for image, own in zip(slow, moves, strict=True):
        for turn in range(rounds):
            order = [(h, w) for h in range(24 - reach, reach, -1) for w in range(24 - reach, reach, -1)]
            for (h, w), move in zip(order, own[turn], strict=True):
                down, right = divmod(int(move), 2 * reach)
                image[h, w] = image[h + down - reach, w + right - reach]
    near(apply("glass_blur", 3, x, torch.from_numpy(moves)),
         bytes_of(ndimage.gaussian_filter(slow / 255, (0, sd, sd, 0), mode="nearest")), 2)  # fmt: skip


@pytest.mark.parametrize("reach", [1, 3])
def test_a_compiled_glass_blur_displaces_the_same_pixels(reach: int) -> None:
    pytest.importorskip("numba")
    x, rng = as_tensor(photographs(20)), np.random.default_rng(reach)
    moves = torch.from_numpy(rng.integers(0, 4 * reach**2, (2, 2, (20 - 2 * reach) ** 2)).astype(np.int32))
    before = x.clone()
    assert torch.equal(glass.displace(x, moves, reach), glass.displace_lines(x, moves, reach))
    assert torch.equal(x, before)


def test_compiled_edges_and_distances_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    x = as_tensor(photographs(48)).float().mean(1).floor()  # (2, 48, 48)
    edge, strong = spatter.edges(x, 50, 150), spatter.edges(x, 50, 700)
    compiled = edge, strong, spatter.edge_distance(edge), spatter.edge_distance(strong)
    monkeypatch.setenv("TILEWORK_KERNELS", "0")
    edge, strong = spatter.edges(x, 50, 150), spatter.edges(x, 50, 700)
    slow = edge, strong, spatter.edge_distance(edge), spatter.edge_distance(strong)
    for fast, plain in zip(compiled, slow, strict=True):
        assert torch.equal(fast, plain)
    assert 0 < strong.sum() < edge.sum()


def test_motion_blur_is_half_a_gaussian_along_a_line() -> None:
    x, angle = photographs(40), 30.0
    weights = np.exp(-0.5 * (np.arange(21) / 3) ** 2)
    total = np.zeros(x.shape)
    for i, weight in enumerate(weights / weights.sum()):
        down, right = (int(np.ceil(i * f(np.deg2rad(angle)) - 0.5)) for f in (np.sin, np.cos))
        rows, columns = np.clip(np.arange(40) + down, 0, 39), np.clip(np.arange(40) + right, 0, 39)
        total += weight * x[:, rows][:, :, columns] / 255
    near(apply("motion_blur", 1, x, torch.tensor([angle, angle])), bytes_of(total))


def test_fog_is_diamond_square() -> None:
    side, rng = 8, np.random.default_rng(1)
    u, height = rng.uniform(-1, 1, (side, side)), np.zeros((side, side))
    step, wibble = side, 100.0
    while step >= 2:  # point by point, around a torus
        half = step // 2
        for y in range(half, side, step):
            for x in range(half, side, step):
                corners = [height[(y + i) % side, (x + j) % side] for i in (-half, half) for j in (-half, half)]
                height[y, x] = sum(corners) / 4 + wibble**2 * u[y, x]
        for y in range(0, side, half):
            for x in range((y + half) % step, side, step):
                around = [
                    height[(y + i) % side, (x + j) % side] for i, j in ((-half, 0), (half, 0), (0, -half), (0, half))
                ]
                height[y, x] = sum(around) / 4 + wibble**2 * u[y, x]
        step, wibble = half, wibble / 2
    height -= height.min()
    assert np.allclose(weather.plasma(torch.from_numpy(u)[None].float(), 2.0)[0], height / height.max(), atol=1e-5)


def test_elastic_transform_moves_pixels_by_a_smooth_field() -> None:
    x, rng = photographs(32), np.random.default_rng(2)
    field = rng.uniform(-1, 1, (2, 2, 32, 32))
    alpha, sd = 244 * 0.05, 244 * 0.01
    made = apply("elastic_transform", 3, x, (torch.zeros(2, 3, 2), torch.from_numpy(field).float()))
    smooth = ndimage.gaussian_filter(field, (0, 0, sd, sd), mode="reflect", truncate=3) * alpha
    rows, columns = np.mgrid[:32, :32]
    for image, own, got in zip(x / 255, smooth, made, strict=True):
        at = [rows + own[1], columns + own[0]]
        wanted = [ndimage.map_coordinates(image[..., c], at, order=1, mode="reflect") for c in range(3)]
        near(got, bytes_of(np.stack(wanted, -1)))


def test_distances_to_edges_are_the_shortest_ways() -> None:
    edge = torch.zeros(1, 30, 45, dtype=torch.bool)
    edge[0, 10, 5] = edge[0, 25, 40] = True
    found = spatter.edge_distance(edge)[0]
    steps = {(1, 0): 1.0, (1, 1): 1.4, (2, 1): 2.1969}
    best = np.where(edge[0].numpy(), 0.0, 20.0)
    for _ in range(22):  # until nothing changes
        for (a, b), length in steps.items():
            for dy, dx in {(s * p, t * q) for p, q in ((a, b), (b, a)) for s in (-1, 1) for t in (-1, 1)}:
                moved = np.full(best.shape, 20.0)
                ys, xs = slice(max(0, dy), 30 + min(0, dy)), slice(max(0, dx), 45 + min(0, dx))
                yt, xt = slice(max(0, -dy), 30 + min(0, -dy)), slice(max(0, -dx), 45 + min(0, -dx))
                moved[ys, xs] = best[yt, xt] + length
                best = np.minimum(best, moved)
    assert np.allclose(found.numpy(), best, atol=1e-4)


def test_edges_of_a_square_are_its_outline() -> None:
    x = torch.zeros(1, 20, 20)
    x[0, 5:15, 5:15] = 200
    found = spatter.edges(x, 50, 150)[0]
    assert found[5:15, 5:15].any(1).all()
    assert not found[7:13, 7:13].any()
    assert not found[:3].any()


def test_noise_has_the_distribution_it_should() -> None:
    x = torch.full((1, 3, 200, 200), 100, dtype=torch.uint8)
    draws = Draws(0, 0, torch.arange(1))
    made = {
        n: ours.corrupt(x, n, 2, draws, True)[0].double() for n in ("gaussian_noise", "speckle_noise", "shot_noise")
    }
    assert made["gaussian_noise"].std() == pytest.approx(0.12 * 255, rel=0.02)
    assert made["gaussian_noise"].mean() == pytest.approx(99.5, abs=0.6)  # rounded down
    assert made["speckle_noise"].std() == pytest.approx(100 * 0.2, rel=0.02)
    counts = noise._shots(Noise([1]), x, 25, 1.0)
    rate = 100 / 255 * 25
    assert counts.mean() == pytest.approx(rate, rel=0.01)
    assert counts.var() == pytest.approx(rate, rel=0.02)
    p = [np.exp(-rate)]
    for k in range(1, 30):
        p.append(p[-1] * rate / k)
    seen = torch.bincount(counts.flatten().long(), minlength=30)[:30].numpy() / counts.numel()
    assert np.abs(seen - p).max() < 4e-3
    salt = ours.corrupt(x, "impulse_noise", 4, draws, True)
    assert (salt != 100).double().mean() == pytest.approx(0.17, abs=0.005)
    assert (salt == 255).double().mean() == pytest.approx(0.085, abs=0.004)


def frost_of(path: Path) -> Path:
    path.mkdir()
    Image.fromarray(np.random.default_rng(0).integers(100, 255, (90, 80, 3)).astype(np.uint8)).save(path / "a.png")
    return path


@pytest.mark.parametrize("name", list(ours.CORRUPTIONS))
def test_they_are_functions_of_seed_image_and_severity(name: str, tmp_path: Path) -> None:
    x = as_tensor(photographs(48)).repeat(2, 1, 1, 1)
    frost = frost_of(tmp_path / "frost")
    before = x.clone()
    made = ours.corrupt(x, name, 3, Draws(0, 0, torch.tensor([3, 8, 5, 6])), frost=frost)
    assert torch.equal(x, before)
    assert made.shape == x.shape
    assert made.dtype == torch.uint8
    assert made.is_contiguous()
    again = ours.corrupt(x[[2, 1]], name, 3, Draws(0, 0, torch.tensor([5, 8])), frost=frost)
    assert torch.equal(again, made[[2, 1]])
    assert not torch.equal(made[0], x[0])
    for severity in range(1, 6):
        assert ours.corrupt(x[:1, :, :40], name, severity, Draws(1, 0, torch.arange(1)), frost=frost).shape == (
            1,
            3,
            40,
            48,
        )
    alike = torch.equal(made[0], ours.corrupt(x[:1], name, 3, Draws(1, 0, torch.tensor([3])), frost=frost)[0])
    assert alike == (ours.CORRUPTIONS[name].draw is ours.Corruption.__dataclass_fields__["draw"].default)


def test_lengths_scale_with_the_images() -> None:
    x = as_tensor(photographs(112))
    draws = Draws(0, 0, torch.arange(2))
    half = ours.corrupt(x, "gaussian_blur", 2, draws)
    assert torch.equal(half, ours.corrupt(x, "gaussian_blur", 1, draws, native=True))
    assert not torch.equal(half, ours.corrupt(x, "gaussian_blur", 2, draws, native=True))


def test_mce_of_alexnet_is_one_and_unknown_names_are_refused(tmp_path: Path) -> None:
    assert ours.mean_corruption_error(ours.ALEXNET) == pytest.approx(1.0)
    assert len(ours.ALEXNET) == 15
    assert len(ours.EXTRA) == 4
    with pytest.raises(ConfigError, match="did you mean 'gaussian_noise'"):
        ours.check(("gausian_noise",), (1,), True)
    with pytest.raises(ConfigError, match="severity 6"):
        ours.check(("fog",), (6,), True)
    with pytest.raises(ConfigError, match="frost' needs textures"):
        ours.check(("frost",), (1,), False)
    with pytest.raises(InputError, match="no textures"):
        ours.frost_folder(tmp_path)
