"""Crops: against torch's interpolation, against SeiT's one-hot formulation, limits of the boxes, columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from tilework.augment import CentreCrop, Embed, RandomResizedCrop, apply_all, sides_before
from tilework.augment.crop import interpolation_matrix, interpolation_taps, warp_axes
from tilework.core.affine import TRIES, box_affine, random_boxes
from tilework.core.batch import Batch, Mix, Target
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.data import decode_image

Pair, Place = tuple[float, float], tuple[int, int, int, int]


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def slow_warp(x: Tensor, affine: Tensor, grid: tuple[int, int]) -> Tensor:
    """The same one by one: the box of whole places is cut out, then resized by torch."""
    sides = torch.tensor([x.shape[2], x.shape[3]] * 2)
    cut = []
    for one, box in zip(x, torch.stack(boxes(affine), 1) * sides, strict=True):
        top, left, height, width = box.round().int().tolist()
        inner = one[None, :, top : top + height, left : left + width]
        cut.append(F.interpolate(inner, grid, mode="bicubic", align_corners=False))
    return torch.cat(cut)


@dataclass(frozen=True)
class MapColumn:
    """A column that really moves its data."""

    data: Tensor  # (B, C, H, W)

    def warp(self, affine: Tensor, grid: tuple[int, int], filled: bool = False) -> MapColumn:
        return MapColumn(slow_warp(self.data, affine, grid))

    def permute(self, source: Tensor) -> MapColumn:
        raise NotImplementedError

    def mix(self, mix: Mix) -> MapColumn:
        raise NotImplementedError

    def to(self, device: torch.device) -> MapColumn:
        return MapColumn(self.data.to(device))

    def rows(self, which: slice) -> MapColumn:
        return MapColumn(self.data[which])


def make_batch(size: int, *shape: int) -> Batch:
    x = noise(size, *shape)
    return Batch(x, Target.hard(torch.zeros(size, dtype=torch.int64)), torch.arange(size), {"copy": MapColumn(x)})


def whole(size: int) -> Tensor:
    return torch.eye(2, 3).repeat(size, 1, 1)


def boxes(affine: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Top, left, height, width in fractions of the input."""
    width, height = affine[:, 0, 0], affine[:, 1, 1]
    return (affine[:, 1, 2] + 1 - height) / 2, (affine[:, 0, 2] + 1 - width) / 2, height, width


# resampling


@pytest.mark.parametrize("grid", [(7, 9), (14, 18), (20, 11), (28, 28), (3, 40), (4, 5)])
def test_whole_image_equals_torch_bicubic(grid: tuple[int, int]) -> None:
    x = noise(3, 4, 7, 9)
    expected = F.interpolate(x, grid, mode="bicubic", align_corners=False)
    assert torch.allclose(warp_axes(x, whole(3), grid), expected, atol=1e-5)


def test_identity_box_returns_the_input() -> None:
    x = noise(2, 3, 13, 8)
    assert torch.allclose(warp_axes(x, whole(2), (13, 8)), x, atol=1e-5)


def test_any_box_equals_cutting_out_and_resizing() -> None:
    x = noise(16, 3, 12, 20)
    affine = RandomResizedCrop().sample(Draws(0, 0, torch.arange(16)), make_batch(16, 3, 12, 20))
    assert torch.allclose(warp_axes(x, affine, (9, 7)), slow_warp(x, affine, (9, 7)), atol=2e-5)


def test_mirrored_axis_is_a_flip() -> None:
    x = noise(2, 3, 6, 6)
    affine = whole(2) * torch.tensor([-1.0, 1.0, 1.0])
    assert torch.allclose(warp_axes(x, affine, (6, 6)), x.flip(-1), atol=1e-5)


def test_box_on_whole_cells_is_slicing() -> None:
    x = noise(1, 2, 8, 10)
    affine = box_affine(*(torch.tensor([v]) for v in (2 / 8, 3 / 10, 4 / 8, 5 / 10)))
    assert torch.allclose(warp_axes(x, affine, (4, 5)), x[..., 2:6, 3:8], atol=1e-5)


def test_weights_of_every_place_sum_to_one() -> None:
    matrix = interpolation_matrix(torch.tensor([1.0, 0.3, -0.7]), torch.tensor([0.0, 0.6, -0.2]), 11, 17)
    assert matrix.shape == (3, 17, 11)
    assert torch.allclose(matrix.sum(2), torch.ones(3, 17), atol=1e-5)


def test_weights_are_the_cubic_kernel() -> None:
    """Keys' kernel by its two pieces, at the distance of each place."""

    def kernel(x: float, a: float = -0.75) -> float:
        x = abs(x)
        return (a + 2) * x**3 - (a + 3) * x**2 + 1 if x <= 1 else a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0

    places, weights = interpolation_taps(torch.tensor([0.43]), torch.tensor([0.1]), 50, 9)
    for i in range(9):
        at = ((0.43 * ((2 * i + 1) / 9 - 1) + 0.1 + 1) * 50 - 1) / 2
        expected = [kernel(at - int(place)) for place in places[0, i]]
        if places[0, i].unique().numel() == 4:  # not at the edge of the box
            assert weights[0, i].tolist() == pytest.approx(expected, abs=1e-5)
    assert torch.allclose(weights.sum(-1), torch.ones(1, 9), atol=1e-6)


def test_embedding_first_equals_one_hot_maps_first() -> None:
    """SeiT interpolates one-hot maps and multiplies by the codebook afterwards."""
    ids = torch.randint(40, (4, 16, 16), generator=torch.Generator().manual_seed(2))
    codebook = noise(40, 6)
    batch = Batch(ids, Target.hard(torch.zeros(4, dtype=torch.int64)), torch.arange(4))
    crop = RandomResizedCrop(size=(14, 14))
    p = crop.sample(Draws(0, 0, batch.index), batch)
    one_hot = F.one_hot(ids, 40).permute(0, 3, 1, 2).float()  # (B, K, H, W)
    slow = torch.einsum("bkhw,kc->bchw", slow_warp(one_hot, p, (14, 14)), codebook)
    fast = crop.apply(Embed().build(Codebook.of(codebook)).apply(batch, None), p).x
    assert fast.shape == (4, 6, 14, 14)
    assert torch.allclose(fast, slow, atol=1e-5)


# boxes


@pytest.mark.parametrize(("height", "width"), [(32, 32), (20, 30), (30, 20)])
def test_sampled_boxes_lie_inside(height: int, width: int) -> None:
    batch = make_batch(3000, 1, height, width)
    p = RandomResizedCrop().sample(Draws(0, 0, batch.index), batch)
    assert p.shape == (3000, 2, 3)
    assert (p[:, 0, 1] == 0).all()
    assert (p[:, 1, 0] == 0).all()
    top, left, h, w = boxes(p)
    assert min(top.min(), left.min()) >= -1e-6
    assert max((top + h).max(), (left + w).max()) <= 1 + 1e-6
    assert min(h.min(), w.min()) > 0


@pytest.mark.parametrize(("height", "width"), [(32, 32), (20, 30), (30, 20)])
def test_area_and_aspect_keep_their_limits_where_the_box_fits(height: int, width: int) -> None:
    crop = RandomResizedCrop(area=(0.1, 0.6), aspect=(0.5, 3.0))
    batch = make_batch(3000, 1, height, width)
    _, _, h, w = boxes(crop.sample(Draws(0, 0, batch.index), batch))
    fits = (h < 1) & (w < 1)
    assert fits.sum() > 2000
    area, aspect = (h * w)[fits], (w * width / (h * height))[fits]
    assert area.min() >= 0.1 * 0.85  # sides are rounded to whole places
    assert area.max() <= 0.6 * 1.06
    assert aspect.min() >= 0.5 * 0.85
    assert aspect.max() <= 3.0 * 1.15


def test_limits_are_used_to_the_full() -> None:
    crop = RandomResizedCrop(area=(0.1, 0.5), aspect=(0.5, 2.0))  # every box fits a square
    batch = make_batch(4000, 1, 1, 1)
    batch = batch.changed(x=batch.x.expand(-1, -1, 512, 512))  # fine enough for rounding not to matter
    _, _, h, w = boxes(crop.sample(Draws(0, 0, batch.index), batch))
    area, aspect = h * w, (w / h).log2()
    assert area.mean().item() == pytest.approx(0.3, abs=0.01)  # uniform
    assert aspect.mean().item() == pytest.approx(0, abs=0.04)  # uniform in the logarithm
    assert (area.min(), area.max()) == (pytest.approx(0.1, abs=0.01), pytest.approx(0.5, abs=0.01))
    assert (aspect.min(), aspect.max()) == (pytest.approx(-1, abs=0.01), pytest.approx(1, abs=0.01))


def test_full_area_of_a_square_is_the_identity() -> None:
    batch = make_batch(4, 3, 10, 10)
    crop = RandomResizedCrop(size=(10, 10), area=(1.0, 1.0), aspect=(1.0, 1.0))
    out = apply_all([crop], batch, Draws(0, 0, batch.index))
    assert torch.allclose(out.x, batch.x, atol=1e-4)


def test_column_follows_the_random_crop() -> None:
    batch = make_batch(5, 3, 12, 16)
    out = apply_all([RandomResizedCrop(size=(7, 9))], batch, Draws(1, 0, batch.index))
    assert out.x.shape == (5, 3, 7, 9)
    assert torch.allclose(out.columns["copy"].data, out.x, atol=2e-5)
    assert batch.columns["copy"].data is batch.x


def torchvision_box(candidates: list[list[float]], height: int, width: int, area: Pair, aspect: Pair) -> Place:
    """RandomResizedCrop.get_params of torchvision, its random numbers given: top, left, height, width."""
    for u in candidates:
        target = height * width * (area[0] + (area[1] - area[0]) * u[0])
        ratio = math.exp(math.log(aspect[0]) + (math.log(aspect[1]) - math.log(aspect[0])) * u[1])
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(u[2] * (height - h + 1)), int(u[3] * (width - w + 1)), h, w
    if width / height < min(aspect):
        w, h = width, round(width / min(aspect))
    elif width / height > max(aspect):
        w, h = round(height * max(aspect)), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize("area", [(0.08, 1.0), (0.9, 1.0)])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (375, 500), (20, 300), (300, 20), (1, 1), (1, 90), (2, 1)])
def test_boxes_are_those_of_torchvision(height: int, width: int, area: tuple[float, float]) -> None:
    aspect = (3 / 4, 4 / 3)
    u = Draws(3, 1, torch.arange(400)).uniform("boxes", 4 * TRIES).double()
    found = random_boxes(u, *(torch.full_like(u[:, 0], side) for side in (height, width)), area, aspect)
    slow = [torchvision_box(one, height, width, area, aspect) for one in u.unflatten(1, (-1, 4)).tolist()]
    assert torch.stack(found, 1).tolist() == [list(map(float, box)) for box in slow]


def test_every_image_has_its_own_sides() -> None:
    u = Draws(0, 0, torch.arange(300)).uniform("boxes", 4 * TRIES).double()
    rows, columns = 1 + torch.arange(300).double() % 37, 1 + torch.arange(300).double() % 41
    found = torch.stack(random_boxes(u, rows, columns, (0.08, 1.0), (0.5, 2.0)), 1).tolist()
    for i, one in enumerate(u.unflatten(1, (-1, 4)).tolist()):
        assert tuple(found[i]) == torchvision_box(one, int(rows[i]), int(columns[i]), (0.08, 1.0), (0.5, 2.0))


def test_boxes_that_do_not_fit_are_drawn_again() -> None:
    """Clipping them would give a mean area of 0.53; torchvision's algorithm gives 0.49."""
    batch = make_batch(1, 1, 32, 32)
    p = RandomResizedCrop().sample(Draws(0, 0, torch.arange(40000)), batch)
    _, _, h, w = boxes(p)
    assert (h * w).mean().item() == pytest.approx(0.4907, abs=0.004)


# centre


@pytest.mark.parametrize(
    ("size", "rows", "columns"),
    [
        ((4, 4), slice(2, 6), slice(3, 7)),
        ((8, 10), slice(0, 8), slice(0, 10)),
        ((3, 5), slice(2, 5), slice(2, 7)),
    ],
)
def test_centre_crop_is_slicing(size: tuple[int, int], rows: slice, columns: slice) -> None:
    batch = make_batch(2, 3, 8, 10)
    out = apply_all([CentreCrop(size=size)], batch, Draws(0, 0, batch.index))
    assert torch.equal(out.x, batch.x[..., rows, columns])


def test_centre_crop_of_seit() -> None:
    batch = make_batch(1, 2, 32, 32)
    assert torch.equal(CentreCrop().apply(batch, None).x, batch.x[..., 2:30, 2:30])


def test_column_follows_the_centre_crop() -> None:
    batch = make_batch(2, 3, 9, 12)
    out = CentreCrop(size=(4, 7)).apply(batch, None)
    assert torch.allclose(out.columns["copy"].data, out.x, atol=1e-5)


@pytest.mark.parametrize("size", [(9, 4), (4, 11)])
def test_centre_larger_than_the_grid_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match=f"{size[0]}x{size[1]} does not fit a grid of 8x10"):
        CentreCrop(size=size).apply(make_batch(1, 3, 8, 10), None)


@pytest.mark.parametrize(
    ("crop", "ratio", "side"),
    [(224, 0.875, 256), (224, 0.9, 248), (224, 1.0, 224), (384, 1.0, 384), (288, 1.0, 288), (112, 0.875, 128)],
)
@pytest.mark.parametrize(("height", "width"), [(300, 430), (430, 300), (90, 90)])
def test_centre_crop_by_ratio(tmp_path: Path, crop: int, ratio: float, side: int, height: int, width: int) -> None:
    """timm's evaluation on Pillow: the short side resized to floor(crop / ratio), then the middle cut out."""
    assert sides_before((crop, crop), ratio) == (side, side)
    coarse = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    image.save(tmp_path / "x.png")
    wide, high = (side, int(side * height / width)) if width <= height else (int(side * width / height), side)
    left, top = round((wide - crop) / 2), round((high - crop) / 2)
    resized = image.resize((wide, high), Image.Resampling.BICUBIC).crop((left, top, left + crop, top + crop))
    x = torch.from_numpy(decode_image(tmp_path / "x.png", sides_before((crop, crop), ratio)))[None]
    batch = Batch(x, Target.hard(torch.zeros(1, dtype=torch.int64)), torch.arange(1))
    found = CentreCrop((crop, crop)).apply(batch, None).x[0].permute(1, 2, 0).numpy().astype(float)
    assert np.abs(found - np.asarray(resized)).mean() < 2  # half a pixel off where the crop is
