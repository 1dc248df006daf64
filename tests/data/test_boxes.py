"""Boxes and outlines under crops, flips and turns: the box of a drawn rectangle is the moved box of its drawing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from small_data import write_objects
from tilework.augment import CutMix, Flip, MultiScale, ScaleCrop, apply_all, build_all
from tilework.augment.affine import warp
from tilework.core.affine import box_affine
from tilework.core.batch import Batch, Mix, Target
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.data.boxes import Boxes
from tilework.data.detected import ObjectSource, ObjectValues, open_objects
from tilework.data.objects import Objects, shape_mask
from tilework.data.placement import Placement, canvas_affine

BOX = [20.0, 10.0, 50.0, 40.0]


def drawn(frame: str = "letterbox", sides: tuple[int, int] = (60, 80)) -> Batch:
    """A white rectangle on black images, on a canvas of 96x128, and its box."""
    canvas = torch.zeros(4, 1, *sides)
    x0, y0, x1, y1 = map(int, BOX)
    canvas[:, :, y0:y1, x0:x1] = 255
    shape = torch.tensor([sides] * 4, dtype=torch.float32)
    affine = canvas_affine(shape, (96, 128), frame)
    x = warp(canvas, affine, (96, 128)).expand(-1, 3, -1, -1)
    known = Placement(shape, affine).look(96, 128)[2][:, None]
    column = Boxes.of([Objects.of([BOX], [1])] * 4, shape, affine)
    index = torch.arange(4)
    return Batch(x * known, Target.hard(index * 0), index, {"boxes": column})


def seen(x: Tensor) -> list[int]:
    """The box of what is white."""
    rows, columns = (np.flatnonzero((x[0] > 127).any(i).numpy()) for i in (1, 0))
    return [int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1]


def column_of(batch: Batch) -> Boxes:
    column = batch.columns["boxes"]
    assert isinstance(column, Boxes)
    return column


@pytest.mark.parametrize("frame", ["letterbox", "squash", "cover"])
@pytest.mark.parametrize("kind", ["none", "flip", "crop", "scales", "both"])
def test_the_box_of_a_drawing_is_the_moved_box(frame: str, kind: str) -> None:
    batch = drawn(frame)
    steps = {
        "none": [],
        "flip": [Flip(1.0)],
        "crop": [ScaleCrop((64, 64), short=60, long=200, scale=(0.7, 1.6), fill=(0, 0, 0))],
        "scales": [MultiScale((96, 96), (40, 50, 60), 90, 0.5, (50, 60), (30, 50), (0, 0, 0))],
        "both": [ScaleCrop((80, 64), short=60, long=200, fill=(0, 0, 0)), Flip(0.5)],
    }[kind]
    found = apply_all(build_all(steps, None, torch.device("cpu")), batch, Draws(3, 0, batch.index))
    grid = (found.x.shape[2], found.x.shape[3])
    boxes, there = column_of(found).at(*grid)
    assert there.any()
    for picture, box, known in zip(found.x, boxes[:, 0], there[:, 0], strict=True):
        if known and (box[2:] - box[:2]).min() > 3:
            assert torch.allclose(torch.tensor(seen(picture)).float(), box, atol=1.0)


def test_boxes_go_back_to_their_images() -> None:
    batch = drawn()
    steps = build_all([MultiScale((96, 96), (40, 60), 96, 0.0), Flip(0.5)], None, torch.device("cpu"))
    found = column_of(apply_all(steps, batch, Draws(1, 0, batch.index)))
    boxes, _ = found.at(96, 96)
    assert torch.allclose(found.place.boxes_on_image(boxes, 96, 96)[:, 0], torch.tensor([BOX] * 4), atol=1e-3)
    points = (boxes[:, :, :2] + boxes[:, :, 2:]) / 2
    middle = found.place.points_on_image(points, torch.arange(4), 96, 96)[:, 0]
    assert torch.allclose(middle, torch.tensor([[35.0, 25.0]] * 4), atol=1e-3)


def test_a_turn_gives_the_hull() -> None:
    angle = torch.tensor(torch.pi / 4)
    turn = torch.tensor([[[angle.cos(), -angle.sin(), 0], [angle.sin(), angle.cos(), 0]]])
    column = Boxes.of([Objects.of([[40, 40, 60, 60]], [0])], torch.tensor([[100.0, 100.0]])).warp(turn, (100, 100))
    boxes, _ = column.at(100, 100)
    half = 10 * 2**0.5
    assert torch.allclose(boxes[0, 0], torch.tensor([50 - half, 50 - half, 50 + half, 50 + half]), atol=1e-4)


def test_what_a_crop_leaves_out_is_gone() -> None:
    column = Boxes.of([Objects.of([[0, 0, 10, 10], [80, 80, 100, 100], [45, 0, 55, 10]], [0, 1, 2])],
                      torch.tensor([[100.0, 100.0]]))  # fmt: skip
    half = column.warp(box_affine(*(torch.tensor([v]) for v in (0.0, 0.0, 0.5, 0.5))), (50, 50))
    boxes, there = half.at(50, 50)
    assert there.tolist() == [[True, False, True]]
    assert boxes[0, 2].tolist() == pytest.approx([45, 0, 50, 10], abs=1e-4)
    assert half.at(50, 50, visible=0.6)[1].tolist() == [[True, False, False]]
    assert half.at(50, 50, visible=0.49)[1].tolist() == [[True, False, True]]
    assert half.at(50, 50, smallest=6)[1].tolist() == [[True, False, False]]
    padded = half.warp(box_affine(*(torch.tensor([v]) for v in (0.0, 0.0, 2.0, 2.0))), (100, 100))
    assert padded.at(100, 100)[0][0, 2].tolist() == pytest.approx([45, 0, 50, 10], abs=1e-4)  # not where it is grey


def test_the_part_that_shows_the_image() -> None:
    sides = torch.tensor([[60.0, 80.0], [50.0, 100.0]])
    place = Placement(sides, canvas_affine(sides, (64, 64), "letterbox"))
    assert torch.allclose(place.extent(64, 64), torch.tensor([[0.0, 0, 64, 48], [0, 0, 64, 32]]), atol=1e-4)


def test_batches_of_images_with_other_numbers_of_objects() -> None:
    column = Boxes.of([Objects.of([BOX], [1]), Objects.of([], [])], torch.tensor([[60.0, 80.0]] * 2))
    assert column.valid.tolist() == [[True], [False]]
    assert column.rows(slice(1, 2)).valid.tolist() == [[False]]
    assert column.at(60, 80)[1].tolist() == [[True], [False]]
    assert column.to(torch.device("cpu")).labels.tolist() == [[1], [0]]


def test_swaps_and_mixtures_are_refused() -> None:
    batch = drawn()
    with pytest.raises(ConfigError, match="tears its objects"):
        column_of(batch).permute(torch.zeros(4, 2, 2, dtype=torch.int64))
    with pytest.raises(ConfigError, match="boxes of mixed samples"):
        column_of(batch).mix(Mix(torch.arange(4), torch.ones(4, 1, 1)))
    with pytest.raises(ConfigError, match="leave mixing out"):
        apply_all(build_all([CutMix(probability=1.0)], None, torch.device("cpu")), batch, Draws(0, 0, batch.index))


@pytest.mark.parametrize("rle", [False, True])
def test_outlines_in_boxes_are_those_of_the_mask(tmp_path: Path, rle: bool) -> None:
    folder = open_objects(write_objects(tmp_path, 5, most=5, rle=rle))
    assert folder is not None
    source = ObjectValues(outlines=True).attach(ObjectSource.scan(folder, (64, 96)), "x")
    batch = source.batch(np.arange(4))
    batch = apply_all(build_all([Flip(0.5)], None, torch.device("cpu")), batch, Draws(0, 0, batch.index))
    column = column_of(batch)
    boxes, there = column.at(64, 96)
    flipped = column.place.affine[:, 0, 0] < 0
    for sample, number in there.nonzero().tolist():
        one = folder.objects[sample]
        assert one is not None
        mask = shape_mask(one.shapes[number], (64, 96))
        mask = mask[:, ::-1] if flipped[sample] else mask
        x0, y0, x1, y1 = (round(v) for v in boxes[sample, number].tolist())
        whole = torch.tensor([[x0, y0, x1, y1]]).float()
        found = column.outlines_in(whole, torch.tensor([sample]), torch.tensor([number]), 28, (64, 96))[0]
        y, x = (((np.arange(28) + 0.5) / 28 * (b - a) + a).astype(int) for a, b in ((y0, y1), (x0, x1)))
        assert (found.numpy() == mask[np.ix_(y, x)]).mean() > 0.93  # cells on the edge may differ
    bare = replace(column, outlines=None)
    with pytest.raises(ConfigError, match="no outlines"):
        bare.outlines_in(whole, torch.tensor([0]), torch.tensor([0]), 28, (64, 96))
