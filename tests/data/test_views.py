"""Several crops of an image: their boxes are those of torchvision, drawn again where they do not fit."""

from __future__ import annotations

import io
from math import exp, log, sqrt

import numpy as np
import pytest
from PIL import Image

from tilework.core.affine import TRIES
from tilework.data.views import ASPECT, decode_views, sample_crops


def picture(height: int, width: int) -> io.BytesIO:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3)).astype(np.uint8)).save(file, "PNG")
    return file


def slow_box(numbers: list[float], height: int, width: int, area: tuple[float, float]) -> tuple[int, int, int, int]:
    """RandomResizedCrop.get_params of torchvision, its random numbers given: left, top, right, bottom."""
    for at in range(0, 4 * TRIES, 4):
        share, ratio, down, across = numbers[at : at + 4]
        pixels = height * width * (area[0] + (area[1] - area[0]) * share)
        aspect = exp(log(ASPECT[0]) + (log(ASPECT[1]) - log(ASPECT[0])) * ratio)
        w, h = round(sqrt(pixels * aspect)), round(sqrt(pixels / aspect))
        if 0 < w <= width and 0 < h <= height:
            top, left = int(down * (height - h + 1)), int(across * (width - w + 1))
            return left, top, left + w, top + h
    w, h = min(width, round(height * ASPECT[1])), min(height, round(width / ASPECT[0]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


@pytest.mark.parametrize(("height", "width"), [(30, 40), (40, 30), (9, 90), (90, 9), (32, 32)])
@pytest.mark.parametrize("area", [(0.08, 1.0), (0.9, 1.0)])
def test_boxes_and_pixels(height: int, width: int, area: tuple[float, float]) -> None:
    draws = sample_crops(3, np.array([5]), 12)[0]
    assert draws.shape == (12, 4 * TRIES)
    pixels, boxes = decode_views(picture(height, width), (8, 8), draws, area)
    image = Image.open(picture(height, width))
    for numbers, cut, found in zip(draws.astype(np.float64).tolist(), pixels, boxes, strict=True):
        box = slow_box(numbers, height, width, area)
        assert np.allclose(found, np.array(box) / [width, height, width, height], atol=1e-6)
        wanted = image.resize((8, 8), Image.Resampling.BICUBIC, box)
        assert np.array_equal(cut, np.asarray(wanted).transpose(2, 0, 1))


def test_large_boxes_are_not_clipped() -> None:
    """Clipping gives seven of ten boxes one whole side of a square here; torchvision's algorithm does so rarely."""
    draws = sample_crops(0, np.arange(300), 1)[:, 0]
    _, boxes = decode_views(picture(100, 100), (4, 4), draws, (0.85, 0.95))
    whole = (boxes[:, 2:] - boxes[:, :2] == 1).sum(1)
    assert (whole == 1).mean() < 0.3
    assert (whole == 0).mean() > 0.6


def test_views_of_an_image_do_not_depend_on_others() -> None:
    alone, together = sample_crops(1, np.array([7]), 3), sample_crops(1, np.array([4, 7]), 3)
    assert np.array_equal(alone[0], together[1])
    assert not np.array_equal(together[0], together[1])
