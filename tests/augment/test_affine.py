"""Affine geometry: composition against 3x3 products and repeated warps, limits against formulas, warps against PIL."""

from __future__ import annotations

from dataclasses import replace
from math import cos, radians, sin, tan

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tilework.augment import RandomResizedCrop
from tilework.augment.affine import Geometry, warp
from tilework.core.affine import follow
from tilework.core.batch import Batch, Target
from tilework.core.rng import Draws

AFFINE, BILINEAR = Image.Transform.AFFINE, Image.Resampling.BILINEAR
STILL = Geometry(crop=0.0, flip=0.0, turn=0.0)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_batch(size: int, height: int = 16, width: int = 16) -> Batch:
    index = torch.arange(size)
    return Batch(noise(size, 2, height, width), Target.hard(torch.zeros_like(index)), index)


def sampled(geometry: Geometry, batch: Batch, seed: int = 0) -> Tensor:
    return geometry.sample(Draws(seed, 0, batch.index), batch)


def square(affine: Tensor) -> Tensor:
    """(B, 2, 3) with the row that makes it a 3x3 matrix."""
    return torch.cat([affine, torch.tensor([0.0, 0.0, 1.0]).expand(len(affine), 1, 3)], 1)


def places(height: int, width: int) -> Tensor:
    """An image whose colours are its own coordinates, (1, 2, H, W)."""
    x, y = ((2 * torch.arange(n) + 1) / n - 1 for n in (width, height))
    return torch.stack([x.expand(height, width), y[:, None].expand(height, width)])[None]


# composition


def test_follow_is_a_product_of_matrices() -> None:
    first, second = noise(5, 2, 3), noise(5, 2, 3, seed=1)
    torch.testing.assert_close(square(follow(first, second)), square(first) @ square(second))


def test_follow_is_one_warp_after_another() -> None:
    x = places(32, 24).expand(6, -1, -1, -1)
    first, second = (torch.eye(2, 3) * 0.6 + 0.08 * noise(6, 2, 3, seed=s) for s in (2, 3))  # look well inside
    once, twice = warp(x, follow(first, second), (10, 12)), warp(warp(x, first, (40, 36)), second, (10, 12))
    torch.testing.assert_close(once, twice, atol=1e-4, rtol=0)
    assert not torch.allclose(once, warp(x, follow(second, first), (10, 12)), atol=1e-2)


def test_crop_comes_first_then_turn_then_flip() -> None:
    batch, every = make_batch(20), Geometry(crop=1.0, flip=1.0, turn=1.0)
    parts = (replace(STILL, **{name: 1.0}) for name in ("crop", "turn", "flip"))
    crop, turn, flip = (square(sampled(part, batch)) for part in parts)
    torch.testing.assert_close(square(sampled(every, batch)), crop @ turn @ flip)


# what is sampled


def test_nothing_to_do_is_the_identity() -> None:
    batch = make_batch(8)
    affine = sampled(STILL, batch)
    assert torch.equal(affine, torch.eye(2, 3).expand(8, 2, 3))
    assert torch.allclose(warp(batch.x, affine, (16, 16)), batch.x, atol=1e-5)  # torch rounds its places


@pytest.mark.parametrize("sides", [(16, 16), (7, 10)])
def test_flip_is_a_mirror(sides: tuple[int, int]) -> None:
    batch = make_batch(4, *sides)
    affine = sampled(replace(STILL, flip=1.0), batch)
    assert torch.equal(affine, torch.tensor([[-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]).expand(4, 2, 3))
    assert torch.allclose(warp(batch.x, affine, sides), batch.x.flip(-1), atol=1e-5)


def test_crop_is_the_box_of_a_random_resized_crop() -> None:
    batch, limits = make_batch(50, 24, 32), {"area": (0.1, 0.7), "aspect": (0.5, 1.5)}
    expected = RandomResizedCrop(**limits).sample(Draws(3, 0, batch.index), batch)
    assert torch.equal(sampled(replace(STILL, crop=1.0, **limits), batch, seed=3), expected)


def test_turn_is_rotation_after_shear_and_a_shift() -> None:
    """By the formula, sample by sample, from the same draws."""
    batch, geometry = make_batch(30), replace(STILL, turn=1.0, rotate=40.0, translate=0.1, shear=20.0)
    u = Draws(5, 0, batch.index).uniform("geometry", 7)
    for found, (*_, angle, right, down, shear) in zip(sampled(geometry, batch, seed=5), 2 * u - 1, strict=True):
        a, k = radians(40) * float(angle), tan(radians(20) * float(shear))
        turn = np.array([[cos(a), -sin(a)], [sin(a), cos(a)]]) @ np.array([[1, k], [0, 1]])
        expected = np.column_stack([turn, [0.2 * float(right), 0.2 * float(down)]])
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_limits_are_used_to_the_full_and_on_both_sides() -> None:
    batch = make_batch(4000, 1, 1)
    off = replace(STILL, turn=1.0, rotate=0.0, translate=0.0, shear=0.0)
    rotated, moved, sheared = (
        sampled(replace(off, **{name: getattr(Geometry(), name)}), batch) for name in ("rotate", "translate", "shear")
    )
    torch.testing.assert_close(torch.linalg.det(rotated[:, :, :2]), torch.ones(4000))
    angle = torch.rad2deg(torch.atan2(rotated[:, 1, 0], rotated[:, 0, 0]))
    slant = torch.rad2deg(sheared[:, 0, 1].atan())
    assert torch.equal(sheared[:, 1], torch.tensor([0.0, 1.0, 0.0]).expand(4000, 3)), "rows stay rows"
    assert torch.equal(moved[:, :, :2], torch.eye(2).expand(4000, 2, 2))
    shares = [(angle, 30.0), (slant, 15.0), (moved[:, 0, 2] / 2, 0.2), (moved[:, 1, 2] / 2, 0.2)]  # of sides 2 long
    for values, limit in shares:
        assert values.max().item() == pytest.approx(limit, rel=0.01)
        assert values.min().item() == pytest.approx(-limit, rel=0.01)
        assert values.abs().max() <= limit * (1 + 1e-5)
        assert values.mean().item() == pytest.approx(0, abs=0.05 * limit)
        assert values.std().item() == pytest.approx(limit / 3**0.5, rel=0.05), "uniform"


def test_each_happens_as_often_as_it_should_and_by_itself() -> None:
    batch = make_batch(4000, 8, 8)
    alone = {name: replace(STILL, **{name: p}) for name, p in (("crop", 0.7), ("flip", 0.5), ("turn", 0.2))}
    done = {name: (sampled(one, batch) != torch.eye(2, 3)).flatten(1).any(1).float() for name, one in alone.items()}
    assert done["flip"].mean().item() == pytest.approx(0.5, abs=0.03)
    assert done["turn"].mean().item() == pytest.approx(0.2, abs=0.03)
    assert done["crop"].mean().item() == pytest.approx(0.7, abs=0.04)  # a crop may be the whole
    together = torch.corrcoef(torch.stack(list(done.values()))) - torch.eye(3)
    assert together.abs().max() < 0.06


def test_samples_are_keyed_by_their_index() -> None:
    batch, index = make_batch(6), torch.tensor([3, 1_000_003, 14, 15, 92, 65])
    batch = batch.changed(index=index)
    whole = sampled(Geometry(turn=1.0), batch)
    assert torch.equal(sampled(Geometry(turn=1.0), batch.changed(index=index.flip(0))), whole.flip(0))
    for i in range(6):
        assert torch.equal(sampled(Geometry(turn=1.0), batch.rows(slice(i, i + 1))), whole[i : i + 1])
    assert not torch.equal(sampled(Geometry(turn=1.0), batch, seed=1), whole)
    assert len(whole.unique(dim=0)) == 6


# resampling


def test_quarter_turn_is_counter_clockwise_as_in_torch_and_pil() -> None:
    x = noise(1, 1, 8, 8)
    quarter = Geometry(rotate=90.0)._turn(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    found = warp(x, quarter, (8, 8))
    assert torch.allclose(found, torch.rot90(x, 1, (2, 3)), atol=1e-5)
    turned = np.asarray(Image.fromarray(x[0, 0].numpy()).rotate(90))
    np.testing.assert_allclose(found[0, 0], turned, atol=1e-5)


@pytest.mark.parametrize("grid", [(12, 18), (20, 11)])
def test_bilinear_warp_equals_pil(grid: tuple[int, int]) -> None:
    batch = make_batch(12, 14, 20)
    affine = sampled(Geometry(area=(0.3, 1.0), flip=0.5, turn=1.0), batch)
    found = warp(batch.x, affine, grid)
    unit = np.diag([20 / 2, 14 / 2, 1]) @ np.array([[1, 0, 1], [0, 1, 1], [0, 0, 1]])  # [-1, 1] to input pixels
    back = np.array([[1, 0, -1], [0, 1, -1], [0, 0, 1]]) @ np.diag([2 / grid[1], 2 / grid[0], 1])
    compared = 0
    for x, one, out in zip(batch.x[:, 0].numpy(), square(affine).double().numpy(), found[:, 0].numpy(), strict=True):
        pixels = (unit @ one @ back)[:2].flatten().tolist()
        expected, inside = (  # PIL leaves what lies outside empty
            np.asarray(Image.fromarray(image).transform((grid[1], grid[0]), AFFINE, pixels, BILINEAR))
            for image in (x, np.ones_like(x))
        )
        np.testing.assert_allclose(out[inside == 1], expected[inside == 1], atol=1e-4)
        compared += int(inside.sum())
    assert compared > 6 * grid[0] * grid[1]


def test_beyond_the_border_its_colours_go_on() -> None:
    x = noise(1, 3, 8, 8)
    shifted = warp(x, torch.tensor([[[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]]]), (8, 8))  # a whole side to the right
    assert torch.equal(shifted, x[..., -1:].expand_as(x))


def test_warping_is_pure_and_keeps_numbers_of_another_kind() -> None:
    batch = make_batch(2)
    copy, affine = batch.x.clone(), sampled(Geometry(turn=1.0), batch)
    assert warp(batch.x.double(), affine, (4, 6)).dtype == torch.float64
    assert warp(batch.x, affine, (4, 6)).shape == (2, 2, 4, 6)
    assert torch.equal(batch.x, copy)


def test_no_samples_are_no_trouble() -> None:
    assert warp(torch.zeros(0, 3, 8, 8), torch.zeros(0, 2, 3), (4, 6)).shape == (0, 3, 4, 6)
