"""Random scale and crop: the mask moves as the pixels, sizes are mmsegmentation's, one class does not fill a box."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tilework.augment import Resize, ScaleCrop, apply_all
from tilework.core.batch import Batch, Target
from tilework.core.rng import Draws
from tilework.data.class_mask import VOID, ClassMask
from tilework.data.placement import canvas_affine


def make_batch(sides: tuple[int, int], canvas: tuple[int, int], frame: str, count: int = 16) -> Batch:
    """Red is the row, green the column, in tenths; the class is the sixteenth of the row."""
    y, _ = np.mgrid[: sides[0], : sides[1]]
    mask = (y * 16 // sides[0]).astype(np.uint8)
    affine = canvas_affine(torch.tensor([sides], dtype=torch.float32), canvas, frame)
    rows = torch.from_numpy(y * 240 / sides[0])
    seen = ClassMask.of([np.zeros(sides, np.uint8)], affine)
    down = seen.place.look(*canvas)[0].clamp(0, sides[0] - 1).long()
    pixels = rows[:, 0][down][:, None].repeat(count, 3, 1, 1).float()
    index = torch.arange(count)
    return Batch(
        pixels, Target.hard(index * 0), index, {"mask": ClassMask.of([mask] * count, affine.repeat(count, 1, 1))}
    )


def column_of(batch: Batch) -> ClassMask:
    column = batch.columns["mask"]
    assert isinstance(column, ClassMask)
    return column


@pytest.mark.parametrize("frame", ["squash", "letterbox"])
def test_labels_move_with_the_pixels(frame: str) -> None:
    batch = make_batch((60, 80), (96, 96), frame)
    crop = ScaleCrop((32, 40), short=48, long=200, limit=1.0)
    out = apply_all([crop], batch, Draws(0, 0, batch.index))
    ids = column_of(out).at(32, 40)
    known = ids != VOID
    assert out.x.shape == (16, 3, 32, 40)
    assert (out.x[:, 0][known] - (ids[known].float() * 15 + 7.5)).abs().max() <= 12
    assert 0.5 < known.float().mean() < 1
    grey = torch.tensor([124.0, 116.0, 104.0])
    assert torch.equal(out.x.permute(0, 2, 3, 1)[~known], grey.expand(int((~known).sum()), 3))


def test_scale_is_that_of_the_image_whatever_the_canvas() -> None:
    """A pixel of the crop is 1 / scale pixels of the image at its short side, on both axes."""
    for frame in ("squash", "letterbox", "cover"):
        batch = make_batch((60, 80), (96, 72), frame)
        crop = ScaleCrop((32, 32), short=30, long=1000, scale=(1.0, 1.0), limit=1.0)
        moved = column_of(apply_all([crop], batch, Draws(0, 0, batch.index))).place.affine  # crop to image
        step = moved[:, [1, 0], [1, 0]] * torch.tensor([60.0, 80.0]) / 32  # pixels of the image for one of the crop
        assert torch.allclose(step, torch.full_like(step, 2.0), atol=1e-4)


def test_the_long_side_bounds_the_scale() -> None:
    batch = make_batch((20, 200), (32, 64), "squash")
    crop = ScaleCrop((32, 32), short=40, long=100, scale=(1.0, 1.0), limit=1.0)
    moved = column_of(apply_all([crop], batch, Draws(0, 0, batch.index))).place.affine
    assert torch.allclose(moved[:, 0, 0] * 200 / 32, torch.tensor(2.0), atol=1e-4)


def test_boxes_of_one_class_are_drawn_again() -> None:
    mask = np.zeros((64, 64), np.uint8)
    mask[:, 52:] = np.arange(64)[:, None] // 8 + 1
    index = torch.arange(64)
    batch = Batch(torch.zeros(64, 3, 64, 64), Target.hard(index * 0), index, {"mask": ClassMask.of([mask] * 64)})

    def full(limit: float) -> float:
        crop = ScaleCrop((24, 24), short=64, long=999, scale=(1.0, 1.0), limit=limit)
        maps = crop.sample(Draws(0, 0, index), batch)
        return (ClassMask.of([mask] * 64).largest_share(maps) > 0.75).float().mean().item()

    assert full(1.0) > 0.6
    assert full(0.75) < 0.15  # ten tries


def test_without_masks_the_canvas_is_the_image() -> None:
    index = torch.arange(4)
    batch = Batch(torch.rand(4, 3, 20, 30) * 255, Target.hard(index * 0), index)
    out = apply_all([ScaleCrop((20, 30), short=20, scale=(1.0, 1.0))], batch, Draws(0, 0, index))
    assert torch.allclose(out.x, batch.x, atol=1e-3)
    with pytest.raises(ValueError, match="scale"):
        ScaleCrop(scale=(0.0, 1.0))


def test_resize_keeps_all_of_the_image_and_its_mask() -> None:
    batch = make_batch((60, 80), (96, 96), "squash", count=2)
    out = apply_all([Resize((48, 64))], batch, Draws(0, 0, batch.index))
    assert out.x.shape == (2, 3, 48, 64)
    assert torch.equal(column_of(out).at(16, 16), column_of(batch).at(16, 16))
    assert torch.equal(apply_all([Resize((96, 96))], batch, Draws(0, 0, batch.index)).x, batch.x)
