"""Masks follow crops, flips, turns, swaps and mixtures; outside is void; frames of a canvas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from tilework.augment import Flip, RandAugment, RandomResizedCrop
from tilework.augment.affine import Geometry
from tilework.augment.token_eda import Squares, swap_source
from tilework.core.affine import box_affine, follow, inverse
from tilework.core.batch import Batch, Column, Framed, Mix, Target
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.data.class_mask import VOID, ClassMask
from tilework.data.image_files import Frame, fit_image
from tilework.data.placement import canvas_affine

WHOLE = torch.eye(2, 3)[None]


def rows_and_columns(height: int = 20, width: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """The class of a pixel is its row, or its column."""
    y, x = np.mgrid[:height, :width]
    return y.astype(np.uint8), x.astype(np.uint8)


def make_batch(column: Column, count: int = 1, grid: tuple[int, int] = (20, 30)) -> Batch:
    index = torch.arange(count)
    return Batch(torch.zeros(count, 3, *grid), Target.hard(index * 0), index, {"mask": column})


def box(top: float, left: float, height: float, width: float) -> torch.Tensor:
    return box_affine(*(torch.tensor([v]) for v in (top, left, height, width)))


def test_at_its_own_size_a_mask_is_what_it_was() -> None:
    for mask in rows_and_columns():
        column = ClassMask.of([mask])
        assert torch.equal(column.at(20, 30)[0], torch.from_numpy(mask))
        assert torch.equal(column.of_row(0), torch.from_numpy(mask))
        assert isinstance(column, Framed)


def test_half_the_size_takes_the_nearest_pixel() -> None:
    rows, _ = rows_and_columns()
    assert ClassMask.of([rows]).at(10, 15)[0, :, 0].tolist() == list(range(1, 20, 2))


def test_the_upper_half_has_upper_rows_only() -> None:
    rows, columns = rows_and_columns()
    upper = ClassMask.of([rows]).warp(box(0, 0, 0.5, 1), (10, 30))
    assert upper.at(10, 30).unique().tolist() == list(range(10))
    right = ClassMask.of([columns]).warp(box(0, 0.5, 1, 0.5), (20, 15))
    assert right.at(20, 15).unique().tolist() == list(range(15, 30))


def test_flips_turn_columns_around_and_keep_areas() -> None:
    _, columns = rows_and_columns()
    batch = make_batch(ClassMask.of([columns]))
    flipped = Flip().apply(batch, torch.tensor([True])).columns["mask"]
    assert isinstance(flipped, ClassMask)
    assert torch.equal(flipped.at(20, 30)[0], torch.from_numpy(columns[:, ::-1].copy()))


def test_beyond_the_image_is_void() -> None:
    rows, _ = rows_and_columns()
    wide = ClassMask.of([rows]).warp(box(-0.5, 0, 2, 1), (40, 30)).at(40, 30)[0]
    assert (wide[:10] == VOID).all()
    assert (wide[30:] == VOID).all()
    assert wide[10:30, 0].tolist() == list(range(20))


def test_what_a_crop_cut_off_does_not_come_back() -> None:
    rows, _ = rows_and_columns()
    cut = ClassMask.of([rows]).warp(box(0.25, 0, 0.5, 1), (10, 30))  # rows 5 to 14
    shifted = cut.warp(box(-0.5, 0, 1, 1), (10, 30))  # down by half: the upper half shows nothing
    seen = shifted.at(10, 30)[0, :, 0]
    assert (seen[:5] == VOID).all()
    assert seen[5:].tolist() == list(range(5, 10))


def test_a_turned_mask_is_the_turned_picture() -> None:
    mask = np.zeros((32, 32), np.uint8)
    mask[8:20, 6:26] = 1
    angle = torch.tensor(0.4)
    turn = torch.stack([angle.cos(), -angle.sin(), angle * 0, angle.sin(), angle.cos(), angle * 0]).view(1, 2, 3)
    seen = ClassMask.of([mask]).warp(turn, (32, 32)).at(32, 32)
    picture = torch.from_numpy(mask).float()[None, None]
    grid = F.affine_grid(turn, [1, 1, 32, 32], align_corners=False)
    wanted = F.grid_sample(picture, grid, mode="nearest", padding_mode="zeros", align_corners=False)[0]
    inside = seen != VOID
    assert torch.equal(seen[inside], wanted[inside].to(torch.uint8))
    assert 0.6 < inside.float().mean() < 0.95


def test_masks_follow_rand_augment_as_the_pixels_move() -> None:
    rng = np.random.default_rng(0)
    masks = [(np.kron(rng.integers(0, 2, (3, 3)), np.ones((16, 16)))).astype(np.uint8) for _ in range(8)]
    pixels = torch.from_numpy(np.stack(masks))[:, None].repeat(1, 3, 1, 1) * 200
    index = torch.arange(8)
    batch = Batch(pixels, Target.hard(index * 0), index, {"mask": ClassMask.of(masks)})
    augment = RandAugment(ops=2, probability=1.0)
    p = augment.sample(Draws(3, 0, index), batch)
    p = p._replace(op=10 + p.op % 5)  # warps alone
    out = augment.apply(batch, p)
    column = out.columns["mask"]
    assert isinstance(column, ClassMask)
    seen = column.at(48, 48)
    known = seen != VOID
    same = ((out.x[:, 0] > 100) == (seen == 1))[known].float().mean()
    assert same > 0.93  # all but the edges, which are interpolated


def test_crops_of_any_kind_are_boxes_of_the_mask() -> None:
    _, columns = rows_and_columns()
    batch = make_batch(ClassMask.of([columns] * 4), 4)
    crop = RandomResizedCrop(size=(20, 30), area=(0.3, 0.6))
    p = crop.sample(Draws(0, 0, batch.index), batch)
    seen = crop.apply(batch, p).columns["mask"].at(20, 30)  # type: ignore[attr-defined]
    left = (p[:, 0, 2] - p[:, 0, 0] + 1) / 2 * 30
    assert torch.equal(seen[:, 0, 0], left.round().to(torch.uint8))
    assert (seen != VOID).all()


def test_parts_of_a_mask_follow_swapped_codes() -> None:
    rows, columns = rows_and_columns(16, 16)
    mask = (rows // 4 * 4 + columns // 4).astype(np.uint8)  # the number of each of 4x4 codes
    squares = Squares(torch.tensor([1]), torch.tensor([[0, 0]]), torch.tensor([[3, 2]]))
    source = swap_source(squares, (4, 4), 1).view(1, 4, 4)
    moved = ClassMask.of([mask]).permute(source).at(4, 4)[0]
    wanted = torch.arange(16).view(4, 4)
    wanted[0, 0], wanted[3, 2] = 14, 0
    assert torch.equal(moved.long(), wanted)


def test_mixtures_are_weights_of_two_classes_and_void_has_none() -> None:
    one, two = np.zeros((4, 4), np.uint8), np.full((4, 4), 2, np.uint8)
    two[0] = VOID
    own = torch.ones(2, 4, 4)
    own[:, :, 2:] = 0.25
    mixed = ClassMask.of([one, two]).mix(Mix(torch.tensor([1, 0]), own)).target(4, 4)
    assert mixed.ids.shape == (2, 16, 2)
    weight = mixed.weight.view(2, 4, 4, 2)
    assert weight[0, 1, 3].tolist() == [0.25, 0.75]
    assert mixed.ids.view(2, 4, 4, 2)[0, 1, 3].tolist() == [0, 2]
    assert weight[0, 0, 3].tolist() == [0.25, 0.0]  # void of the partner
    assert mixed.mass.view(2, 4, 4)[1, 0, 0] == 0
    column = ClassMask.of([one, two]).mix(Mix(torch.tensor([1, 0]), own))
    for wrong in (
        lambda: column.warp(WHOLE, (4, 4)),
        lambda: column.permute(torch.zeros(2, 4, 4)),
        lambda: column.mix(Mix(torch.tensor([1, 0]), own)),
        lambda: column.rows(slice(1)),
    ):
        with pytest.raises(ConfigError, match="a mixture cannot be"):
            wrong()


def test_masks_of_several_sizes_share_a_batch() -> None:
    small, large = np.full((5, 9), 1, np.uint8), np.full((8, 6), 2, np.uint8)
    column = ClassMask.of([small, large])
    assert column.ids.shape == (2, 8, 9)
    seen = column.at(4, 4)
    assert (seen[0] == 1).all()
    assert (seen[1] == 2).all()
    assert torch.equal(column.rows(slice(1, 2)).at(4, 4), seen[1:])
    assert column.to(torch.device("cpu")).of_row(1).shape == (8, 6)


@pytest.mark.parametrize("frame", ["cover", "squash", "letterbox"])
@pytest.mark.parametrize("sides", [(20, 30), (33, 17), (24, 24)])
def test_a_canvas_shows_the_part_of_the_mask_that_it_shows_of_the_image(
    frame: Frame, sides: tuple[int, int], tmp_path: Path
) -> None:
    y, x = np.mgrid[: sides[0], : sides[1]]
    picture = np.stack([y * 7, x * 7, y * 0 + 255], -1).astype(np.uint8)
    canvas = np.asarray(fit_image(Image.fromarray(picture), (24, 32), frame))
    affine = canvas_affine(torch.tensor([sides], dtype=torch.float32), (24, 32), frame)
    rows = ClassMask.of([(y * 7).astype(np.uint8)], affine).at(24, 32)[0].numpy()
    columns = ClassMask.of([(x * 7).astype(np.uint8)], affine).at(24, 32)[0].numpy()
    shown = rows != VOID
    if frame != "letterbox":
        assert shown.all()
    assert np.abs(canvas[..., 0].astype(int) - rows)[shown].max() <= 11  # of 7 a pixel
    assert np.abs(canvas[..., 1].astype(int) - columns)[shown].max() <= 11
    assert shown.mean() == pytest.approx((canvas[..., 2] > 200).mean(), abs=0.06)


def test_places_are_the_way_back() -> None:
    rows, _ = rows_and_columns()
    affine = box(0.25, 0.1, 0.5, 0.4)
    column = ClassMask.of([rows]).warp(affine, (10, 12))
    places = column.places(0)
    assert places.shape == (1, 20, 30, 2)
    shown = (places.abs() < 1).all(-1)
    assert shown.sum() == 10 * 12
    there_and_back = follow(affine, inverse(affine))
    assert torch.allclose(there_and_back, WHOLE, atol=1e-6)


def test_turning_oblong_maps_keeps_right_angles() -> None:
    batch = make_batch(ClassMask.of([rows_and_columns()[0]] * 64), 64, (18, 24))
    geometry = Geometry(crop=0.0, flip=0.0, turn=1.0, shear=0.0)
    maps = geometry.sample(Draws(0, 0, torch.arange(64)), batch)[:, :, :2].double()
    pixels = torch.diag(torch.tensor([12.0, 9.0])).double()  # half sides, across before down
    moved = pixels @ maps @ pixels.inverse()
    assert torch.allclose(moved @ moved.transpose(1, 2), torch.eye(2).double().expand(64, 2, 2), atol=1e-5)


def test_the_largest_share_of_a_box() -> None:
    mask = np.zeros((32, 32), np.uint8)
    mask[:8] = 1
    mask[-8:] = VOID
    column = ClassMask.of([mask])
    assert column.largest_share(WHOLE).item() == pytest.approx(2 / 3, abs=0.01)
    assert column.largest_share(box(0, 0, 0.25, 1)).item() == 1
    assert column.largest_share(box(0.75, 0, 0.25, 1)).item() == 0
