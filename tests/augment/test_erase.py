"""Random erasing: boxes against a loop, their probability and area, noise, purity."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tilework.augment.augment import Augment, apply_all, output_shape
from tilework.augment.erase import Erase, Erasure
from tilework.augment.normalise import Normalise
from tilework.core.affine import TRIES
from tilework.core.batch import Batch, Shape, Target
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws


def make_batch(size: int, height: int = 24, width: int = 32, channels: int = 3) -> Batch:
    x = torch.full((size, channels, height, width), 9.0)  # noise never gets there
    return Batch(x, Target.hard(torch.zeros(size, dtype=torch.int64)), torch.arange(size) * 5 + 1)


def erased(augment: Augment, batch: Batch, seed: int = 0, epoch: int = 0) -> Tensor:
    torch.manual_seed(0)
    return apply_all([augment], batch, Draws(seed, epoch, batch.index)).x


def sides(inside: Tensor) -> tuple[Tensor, Tensor]:
    """Height and width of each box. inside: (B, 1, H, W)."""
    return inside[:, 0].any(2).sum(1), inside[:, 0].any(1).sum(1)


def sampled(augment: Erase, batch: Batch) -> Erasure:
    torch.manual_seed(0)
    return augment.sample(Draws(0, 0, batch.index), batch)


def test_pixels_equal_a_loop() -> None:
    batch = make_batch(12)
    p = sampled(Erase(probability=0.7), batch)
    expected = batch.x.clone()
    for i, _, row, column in p.inside.nonzero().tolist():
        expected[i, :, row, column] = p.noise[i, :, row, column]
    out = Erase().apply(batch, p).x
    assert torch.equal(out, expected)
    assert not torch.equal(out, batch.x)
    assert (batch.x == 9).all()


def test_erased_pixels_form_one_box() -> None:
    for inside in sampled(Erase(probability=1.0), make_batch(200)).inside[:, 0].long():
        rows, columns = inside.amax(1), inside.amax(0)
        assert inside.sum() > 0
        assert torch.equal(inside, rows[:, None] * columns)
        assert (rows.diff() == 1).sum() <= 1  # contiguous
        assert (columns.diff() == 1).sum() <= 1


@pytest.mark.parametrize("probability", [0.0, 0.25, 1.0])
def test_probability(probability: float) -> None:
    inside = sampled(Erase(probability), make_batch(4000, 16, 16, 1)).inside
    assert inside.flatten(1).any(1).float().mean().item() == pytest.approx(probability, abs=0.02)


@pytest.mark.parametrize(("height", "width"), [(64, 64), (48, 80)])
def test_area_is_uniform_and_aspect_is_uniform_in_the_logarithm(height: int, width: int) -> None:
    augment = Erase(probability=1.0, area=(0.05, 0.25), aspect=(0.5, 2.0))  # every box fits
    h, w = sides(sampled(augment, make_batch(3000, height, width, 1)).inside)
    area, aspect = h * w / (height * width), (w / h).log2()
    assert area.mean().item() == pytest.approx(0.15, abs=0.004)
    assert area.std().item() == pytest.approx(0.2 / math.sqrt(12), abs=0.004)
    assert (area.min(), area.max()) == (pytest.approx(0.05, abs=0.01), pytest.approx(0.25, abs=0.02))
    assert aspect.mean().item() == pytest.approx(0, abs=0.04)
    assert aspect.std().item() == pytest.approx(2 / math.sqrt(12), abs=0.04)


def test_every_place_is_as_likely_as_its_mirror() -> None:
    often = sampled(Erase(probability=1.0), make_batch(6000, 16, 16, 1)).inside[:, 0].float().mean(0)
    assert torch.allclose(often, often.flip(0), atol=0.03)
    assert torch.allclose(often, often.flip(1), atol=0.03)
    assert often.min() > 0.01  # corners too
    assert often.mean().item() == pytest.approx((0.02 + 1 / 3) / 2, abs=0.01)


def test_boxes_are_those_of_timm() -> None:
    """RandomErasing._erase of timm as a loop: ten tries, a box must be smaller than the image on both sides."""
    augment, batch, (height, width) = Erase(0.8, area=(0.3, 0.9), aspect=(0.3, 1 / 0.3)), make_batch(300), (24, 32)
    u = Draws(0, 0, batch.index).uniform("erase", 2 + 4 * TRIES).tolist()
    expected = torch.zeros(300, height, width, dtype=torch.bool)
    for i, one in enumerate(u):
        numbers = one[1:5] + one[6:]
        for t in range(0, 4 * TRIES, 4):
            area = (0.3 + 0.6 * numbers[t]) * height * width
            ratio = math.exp(math.log(0.3) + (math.log(1 / 0.3) - math.log(0.3)) * numbers[t + 1])
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if w < width and h < height:
                top, left = int(numbers[t + 2] * (height - h + 1)), int(numbers[t + 3] * (width - w + 1))
                expected[i, top : top + h, left : left + w] = one[0] < 0.8
                break
    assert torch.equal(sampled(augment, batch).inside[:, 0], expected)
    assert (~expected.flatten(1).any(1)).float().mean() > 0.1


def test_box_that_never_fits_erases_nothing() -> None:
    assert not sampled(Erase(1.0, area=(0.9, 0.9), aspect=(4.0, 4.0)), make_batch(20, 32, 32)).inside.any()
    assert not sampled(Erase(1.0), make_batch(20, 1, 1)).inside.any()


def test_noise_is_standard_normal_and_independent() -> None:
    batch = make_batch(64)
    out = erased(Erase(1.0, area=(0.94, 0.94), aspect=(1.0, 1.0)), batch.changed(x=torch.zeros(64, 3, 33, 33)))
    out = out[..., 1:-1, 1:-1]  # within the box of 32x32 wherever it lies
    assert out.mean().item() == pytest.approx(0, abs=0.05)
    assert out.std().item() == pytest.approx(1, abs=0.05)
    assert (out.abs() < 1).float().mean().item() == pytest.approx(0.683, abs=0.02)
    lines = torch.cat([out[:8].flatten(1), out[:8].roll(1, -1).flatten(1), out[:8].roll(1, 1).flatten(1)])
    assert (torch.corrcoef(lines) - torch.eye(24)).abs().max() < 0.12  # samples, neighbours, channels


def test_noise_comes_from_the_generator_of_torch() -> None:
    batch = make_batch(8)
    first = sampled(Erase(), batch).noise
    assert torch.equal(sampled(Erase(), batch).noise, first)
    torch.manual_seed(1)
    assert not torch.equal(Erase().sample(Draws(0, 0, batch.index), batch).noise, first)


def test_order_and_company_do_not_matter() -> None:
    augment, batch = Erase(probability=0.7), make_batch(8)
    whole = erased(augment, batch, seed=3, epoch=2)
    turned = batch.changed(x=batch.x.flip(0), index=batch.index.flip(0))
    assert torch.equal(erased(augment, turned, seed=3, epoch=2).flip(0), whole)
    for i in range(8):
        assert torch.equal(erased(augment, batch.rows(slice(i, i + 1)), seed=3, epoch=2), whole[i : i + 1])
    assert not torch.equal(erased(augment, batch, seed=4, epoch=2), whole)
    assert not torch.equal(erased(augment, batch, seed=3, epoch=3), whole)


def test_bytes_are_refused() -> None:
    batch = make_batch(2).changed(x=torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(ConfigError, match="put it after 'normalise'"):
        erased(Erase(), batch)
    chain = [Normalise(), Augment.choices["erase"](probability=1.0)]
    assert output_shape(chain, Shape("pixels", 3, (32, 32))).stage == "pixels"
    assert apply_all(chain, batch, Draws(0, 0, batch.index)).x.isfinite().all()


def test_half_precision_stays() -> None:
    batch = make_batch(4)
    assert erased(Erase(1.0), batch.changed(x=batch.x.bfloat16())).dtype == torch.bfloat16
