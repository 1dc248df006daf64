"""MoCo v3's changes of colour and focus: colour jitter, greyscale, Gaussian blur and solarise against Pillow."""

from __future__ import annotations

import colorsys
from itertools import permutations

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor
from torch.nn import functional as F

from tilework.augment import Augment, ColourJitter, GaussianBlur, Greyscale, Solarise, TwoViews, apply_all
from tilework.augment import rand_augment as shared
from tilework.augment.blur import Blurring
from tilework.augment.colour_jitter import Change, Jitter, turn_hue
from tilework.augment.two_views import COLUMN, OtherView
from tilework.core.batch import Batch, Target
from tilework.core.config import decode
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.recipes import run_of

ALL = (ColourJitter(probability=1.0), Greyscale(1.0), GaussianBlur(probability=1.0), Solarise(1.0))


def images(count: int, height: int = 37, width: int = 53, seed: int = 0) -> Tensor:
    """From smooth to noisy, (B, 3, H, W) bytes."""
    g = torch.Generator().manual_seed(seed)
    coarse = F.interpolate(torch.rand(count, 3, 5, 5, generator=g), (height, width), mode="bilinear")
    noise = torch.rand(count, 3, height, width, generator=g)
    return (255.99 * torch.lerp(coarse, noise, torch.linspace(0, 1, count).view(-1, 1, 1, 1))).to(torch.uint8)


def batch_of(x: Tensor) -> Batch:
    return Batch(x, Target.hard(torch.zeros(len(x), dtype=torch.int64)), torch.arange(len(x)) * 5 + 2)


def picture(x: Tensor) -> Image.Image:
    return Image.fromarray(x.permute(1, 2, 0).numpy())


def bytes_of(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def hue_by_pillow(image: Image.Image, factor: float) -> Image.Image:
    """torchvision's adjust_hue on an image of Pillow."""
    hue, saturation, value = image.convert("HSV").split()
    turned = np.array(hue) + np.int32(factor * 255).astype(np.uint8)
    return Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert("RGB")


def jittered_by_pillow(image: Image.Image, factors: list[float], order: list[int]) -> Image.Image:
    enhancers = {
        Change.BRIGHTNESS: ImageEnhance.Brightness,
        Change.CONTRAST: ImageEnhance.Contrast,
        Change.SATURATION: ImageEnhance.Color,
    }
    for change in order:
        if change == Change.HUE:
            image = hue_by_pillow(image, factors[change])
        else:
            image = enhancers[Change(change)](image).enhance(factors[change])
    return image


# against Pillow


@pytest.mark.parametrize("order", list(permutations(range(4)))[::5])
def test_colour_jitter_gives_the_bytes_of_pillow_in_any_order(order: tuple[int, ...]) -> None:
    x, g = images(6), torch.Generator().manual_seed(sum(order[:2]))
    factor = torch.cat([0.5 + torch.rand(6, 3, generator=g), torch.rand(6, 1, generator=g) - 0.5], 1)
    p = Jitter(torch.ones(6, dtype=torch.bool), factor, torch.tensor(order).repeat(6, 1))
    out = ColourJitter().apply(batch_of(x), p).x
    wanted = [jittered_by_pillow(picture(one), f, list(order)) for one, f in zip(x, factor.tolist(), strict=True)]
    assert torch.equal(out, torch.stack([bytes_of(image) for image in wanted]))


@pytest.mark.parametrize("factor", [-0.5, -0.1, 0.0, 0.04, 0.1, 0.5])
def test_hue_of_every_kind_of_colour_is_pillow_s(factor: float) -> None:
    """All colours on a grid of 6 levels, near greys, and random ones."""
    grid = torch.cartesian_prod(*[torch.tensor([0, 1, 2, 5, 51, 100, 101, 127, 128, 200, 254, 255])] * 3)
    some = torch.randint(256, (40_000, 3), generator=torch.Generator().manual_seed(0))
    x = torch.cat([grid, some]).to(torch.uint8).T[None, :, None]  # (1, 3, 1, N)
    out = turn_hue(x, torch.tensor([factor]))
    assert torch.equal(out[0], bytes_of(hue_by_pillow(picture(x[0]), float(torch.tensor(factor)))))


def test_hue_is_that_of_colorsys_within_its_bytes() -> None:
    x = torch.tensor([200, 120, 40], dtype=torch.uint8).view(1, 3, 1, 1)
    out = turn_hue(x, torch.tensor([0.25]))[0, :, 0, 0] / 255
    hue, saturation, value = colorsys.rgb_to_hsv(200 / 255, 120 / 255, 40 / 255)
    assert torch.allclose(out, torch.tensor(colorsys.hsv_to_rgb(hue + 0.25, saturation, value)), atol=0.02)


def test_greyscale_gives_the_bytes_of_pillow() -> None:
    x = images(6)
    out = Greyscale().apply(batch_of(x), torch.tensor([True, False] * 3)).x
    for one, found, chosen in zip(x, out, [True, False] * 3, strict=True):
        assert torch.equal(found, bytes_of(picture(one).convert("L").convert("RGB")) if chosen else one)


def test_solarise_gives_the_bytes_of_pillow() -> None:
    x = images(4)
    out = Solarise().apply(batch_of(x), torch.tensor([True, False, True, True])).x
    for one, found, chosen in zip(x, out, [True, False, True, True], strict=True):
        assert torch.equal(found, bytes_of(ImageOps.solarize(picture(one))) if chosen else one)


@pytest.mark.parametrize(("height", "width"), [(37, 53), (5, 4), (1, 3)])
def test_blur_gives_the_bytes_of_pillow(height: int, width: int) -> None:
    x, sigma = images(12, height, width), torch.linspace(0.1, 2.0, 12)
    out = GaussianBlur().apply(batch_of(x), Blurring(torch.ones(12, dtype=torch.bool), sigma)).x
    for one, found, radius in zip(x, out, sigma.tolist(), strict=True):
        assert torch.equal(found, bytes_of(picture(one).filter(ImageFilter.GaussianBlur(radius))))


def test_wide_blur_gives_the_bytes_of_pillow() -> None:
    x, sigma = images(4), torch.tensor([3.7, 6.0, 9.9, 10.0])
    blur = GaussianBlur(sigma=(3.0, 10.0))
    out = blur.apply(batch_of(x), Blurring(torch.tensor([True, True, False, True]), sigma)).x
    for i in (0, 1, 3):
        assert torch.equal(out[i], bytes_of(picture(x[i]).filter(ImageFilter.GaussianBlur(float(sigma[i])))))
    assert torch.equal(out[2], x[2])


# draws


def test_rates_and_ranges() -> None:
    batch = batch_of(torch.zeros(20_000, 3, 1, 1, dtype=torch.uint8))
    draws = Draws(0, 0, batch.index)
    jitter = ColourJitter().sample(draws, batch)
    assert jitter.chosen.float().mean().item() == pytest.approx(0.8, abs=0.01)
    low, high = jitter.factor.amin(0), jitter.factor.amax(0)
    assert torch.allclose(low, torch.tensor([0.6, 0.6, 0.8, -0.1]), atol=1e-3)
    assert torch.allclose(high, torch.tensor([1.4, 1.4, 1.2, 0.1]), atol=1e-3)
    orders, counts = jitter.order.unique(dim=0, return_counts=True)
    assert len(orders) == 24
    assert counts.min() > 20_000 / 24 * 0.85
    assert Greyscale().sample(draws, batch).float().mean().item() == pytest.approx(0.2, abs=0.01)
    blur = GaussianBlur(probability=0.1).sample(draws, batch)
    assert blur.chosen.float().mean().item() == pytest.approx(0.1, abs=0.01)
    assert (blur.sigma.min().item(), blur.sigma.max().item()) == pytest.approx((0.1, 2.0), abs=1e-3)
    assert blur.sigma.mean().item() == pytest.approx(1.05, abs=0.02)


def test_strong_jitter_never_inverts() -> None:
    batch = batch_of(torch.zeros(1000, 3, 1, 1, dtype=torch.uint8))
    factor = ColourJitter(brightness=3.0).sample(Draws(0, 0, batch.index), batch).factor[:, 0]
    assert 0 <= factor.min().item() < 0.05
    assert factor.max().item() == pytest.approx(4.0, abs=0.02)


@pytest.mark.parametrize("augment", ALL, ids=lambda a: a.name)
def test_computing_all_samples_gives_the_same(augment: Augment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Off the CPU everything is computed for every sample, and kept where it was drawn."""
    batch = batch_of(images(12, 12, 16))
    some = decode(Augment, {"name": augment.name, "probability": 0.5})
    on_cpu = apply_all([some.build()], batch, Draws(0, 0, batch.index)).x
    monkeypatch.setattr(shared, "can_count", lambda device: False)
    assert torch.equal(apply_all([some.build()], batch, Draws(0, 0, batch.index)).x, on_cpu)
    assert not torch.equal(on_cpu, batch.x)


@pytest.mark.parametrize("augment", ALL, ids=lambda a: a.name)
def test_nobody_is_chosen(augment: Augment) -> None:
    batch = batch_of(images(3))
    none = decode(Augment, {"name": augment.name, "probability": 0.0})
    assert torch.equal(apply_all([none.build()], batch, Draws(0, 0, batch.index)).x, batch.x)


@pytest.mark.parametrize("augment", ALL, ids=lambda a: a.name)
def test_floats_are_rounded_to_bytes_first(augment: Augment) -> None:
    batch = batch_of(images(4))
    draws = Draws(0, 0, batch.index)
    out = apply_all([augment.build()], batch.changed(x=batch.x + 0.3), draws).x
    assert torch.equal(out, apply_all([augment.build()], batch, draws).x.float())


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "colour_jitter", "hue": 0.6},
        {"name": "colour_jitter", "contrast": -0.1},
        {"name": "gaussian_blur", "sigma": [2.0, 1.0]},
        {"name": "gaussian_blur", "sigma": [0.0, 1e9]},
    ],
)
def test_impossible_amounts_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="augment"):
        decode(Augment, settings, "augment")


# two views


def test_the_second_view_has_its_own_steps() -> None:
    batch = batch_of(images(5))
    out = apply_all([TwoViews((Greyscale(1.0),), (Solarise(1.0),)).build()], batch, Draws(0, 0, batch.index))
    other = out.columns[COLUMN]
    assert isinstance(other, OtherView)
    assert torch.equal(out.x, apply_all([Greyscale(1.0)], batch, Draws(0, 0, batch.index)).x)
    assert torch.equal(other.x, torch.where(batch.x >= 128, 255 - batch.x, batch.x))


def test_views_of_moco_are_those_of_its_code() -> None:
    """Main_moco.py of facebookresearch/moco-v3, augmentation1 and augmentation2."""
    (views,) = run_of("good_moco_deit_s").augment
    assert isinstance(views, TwoViews)
    names = ["whole_crop", "colour_jitter", "greyscale", "gaussian_blur", "flip", "normalise"]
    assert [step.name for step in views.views] == names
    assert [step.name for step in views.second] == [*names[:4], "solarise", *names[4:]]
    assert views.views[:3] == views.second[:3]
    assert views.views[1] == ColourJitter(0.4, 0.4, 0.2, 0.1, 0.8)
    assert views.views[2] == Greyscale(0.2)
    assert (views.views[3], views.second[3]) == (GaussianBlur((0.1, 2.0), 1.0), GaussianBlur((0.1, 2.0), 0.1))
    assert views.second[4] == Solarise(0.2, 128)
