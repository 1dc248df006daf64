"""The demo's photographs: crops inside, training and validation apart, written as an ordinary folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tilework.core.errors import OutputError, TileworkError
from tilework.data import ImageFolder
from tilework.data.image_files import to_rgb
from tilework.data.photographs import PHOTOGRAPHS, Crop, photograph_folder, plan_crops, write_photographs


def true_size(name: str) -> tuple[int, int]:
    with Image.open(photograph_folder() / name) as image:
        return image.size


def corners(crops: list[Crop], part: str) -> np.ndarray:
    """Left and top of the crops of one part, (P, 2)."""
    return np.array([(crop.left, crop.top) for crop in crops if crop.part == part])


def overlapping_pairs(crops: list[Crop], side: int) -> int:
    train, val = corners(crops, "train"), corners(crops, "val")
    return int((np.abs(train[:, None] - val[None]) < side).all(-1).sum())


def outside(crops: list[Crop], width: int, height: int) -> list[Crop]:
    return [c for c in crops if c.left < 0 or c.top < 0 or c.left + c.side > width or c.top + c.side > height]


@pytest.mark.parametrize("side", [32, 64, 96])
@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_validation_never_overlaps_training(name: str, side: int) -> None:
    width, height = true_size(name)
    crops = plan_crops(name, width, height, side, train=400, val=60)
    assert overlapping_pairs(crops, side) == 0
    assert outside(crops, width, height) == []


def test_overlap_count_can_find_an_overlap() -> None:
    crops = [Crop("x", "train", 0, 0, 10), Crop("x", "val", 9, 9, 10), Crop("x", "val", 10, 0, 10)]
    assert overlapping_pairs(crops, 10) == 1


@pytest.mark.parametrize("width", range(288, 1500, 37))
def test_any_width_of_three_crops_or_more_works(width: int) -> None:
    crops = plan_crops("any", width, 96, 96, train=100, val=100)
    assert overlapping_pairs(crops, 96) == 0
    assert outside(crops, width, 96) == []


def test_photograph_too_small_gives_no_crop_outside_or_shared() -> None:
    try:
        crops = plan_crops("small", 200, 200, 96, train=100, val=40)
    except TileworkError:
        return  # refusing is as good
    assert outside(crops, 200, 200) == []
    assert overlapping_pairs(crops, 96) == 0


def test_counts_and_names_are_as_asked() -> None:
    crops = plan_crops("cat", 451, 300, 96, train=20, val=6)
    assert [crop.part for crop in crops] == ["train"] * 20 + ["val"] * 6
    assert {(crop.photograph, crop.side) for crop in crops} == {("cat", 96)}


def test_plan_is_a_function_of_name_and_seed() -> None:
    first = plan_crops("cat", 451, 300, 96, 20, 6)
    assert plan_crops("cat", 451, 300, 96, 20, 6) == first
    assert plan_crops("cat", 451, 300, 96, 20, 6, seed=1) != first
    assert corners(plan_crops("dog", 451, 300, 96, 20, 6), "train").tolist() != corners(first, "train").tolist()


def test_more_crops_keep_the_first_ones() -> None:
    few, many = (plan_crops("cat", 451, 300, 96, count, 6) for count in (5, 50))
    assert many[:5] == few[:5]


def test_crops_spread_over_the_photograph() -> None:
    places = corners(plan_crops("wide", 960, 480, 96, 300, 60), "train")
    assert places[:, 0].min() < 100
    assert places[:, 0].max() > 760
    assert np.ptp(places[:, 1]) > 300


def test_validation_lies_between_training_stripes() -> None:
    crops = plan_crops("cat", 451, 300, 96, 300, 100)
    train, val = (corners(crops, part)[:, 0] for part in ("train", "val"))
    assert train.min() < val.min() <= val.max() < train.max()
    assert np.ptp(val) < np.ptp(train[train < val.min()])  # and is narrower


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("photographs") / "images"
    write_photographs(out, side=32, train=3, val=2)
    return out


def test_both_parts_are_image_folders_of_the_same_classes(written: Path) -> None:
    train, val = (ImageFolder.open(written / part) for part in ("train", "val"))
    assert train.classes == val.classes == tuple(sorted(Path(name).stem for name in PHOTOGRAPHS))
    assert np.bincount(train.labels).tolist() == [3] * len(PHOTOGRAPHS)
    assert np.bincount(val.labels).tolist() == [2] * len(PHOTOGRAPHS)
    assert train.skipped == val.skipped == {}


def test_written_crops_are_what_the_list_says(written: Path) -> None:
    listed = json.loads((written / "crops.json").read_text())
    assert len(listed) == 5 * len(PHOTOGRAPHS)
    mine = [crop for crop in listed if crop["photograph"] == "coffee"]
    with Image.open(photograph_folder() / "coffee.png") as file:
        photograph = np.asarray(to_rgb(file)).astype(int)
    for number, crop in enumerate(mine):
        with Image.open(written / crop["part"] / "coffee" / f"{number:04d}.jpg") as file:
            pixels = np.asarray(file.convert("RGB"))
        left, top, side = crop["left"], crop["top"], crop["side"]
        assert pixels.shape == (32, 32, 3)
        assert np.abs(pixels - photograph[top : top + side, left : left + side]).mean() < 6


def test_existing_output_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(OutputError, match="exists"):
        write_photographs(tmp_path, side=32, train=1, val=1)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
