"""Colour histograms, beside numpy's histogram of three dimensions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tilework.core.errors import InputError
from tilework.evaluation.colour_histogram import colour_histogram, colour_histograms


def test_it_is_the_root_of_numpys_histogram() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 9, 7)).astype(np.uint8)
    counts, _ = np.histogramdd(pixels.reshape(3, -1).T, bins=[np.arange(0, 257, 64)] * 3)
    np.testing.assert_allclose(colour_histogram(pixels, 4) ** 2, counts.ravel() / 63, rtol=1e-6)


def test_images_of_one_colour_have_one_entry(tmp_path: Path) -> None:
    for name, colour in (("red", (255, 0, 0)), ("black", (0, 0, 0))):
        Image.new("RGB", (20, 30), colour).save(tmp_path / f"{name}.png")
    found = colour_histograms([tmp_path / "red.png", tmp_path / "black.png"])
    assert found.argmax(1).tolist() == [7 * 64, 0]
    assert found.sum(1).tolist() == [1.0, 1.0]


def test_an_image_that_was_spoilt_meanwhile_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"gone\.png can no longer be read: cannot identify"):
        colour_histograms([tmp_path / "gone.png"])
