"""Figures are pictures, pages are self-contained and escape what they are given."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from tilework.report import Page, code_pictures, confusion, curves, predictions, rows_of_pictures, trade


def size(png: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(png)) as image:
        image.load()
        assert np.asarray(image).std() > 0  # something is drawn
        return image.size


def test_figures_are_pictures() -> None:
    lines = [{"step": i, "loss": 1 / (i + 1)} for i in range(9)] + [{"step": 9, "val_top1": 0.5}]
    pictures = np.random.default_rng(0).random((7, 8, 8, 3))
    guesses = {"tokens": [("cat", 0.5)] * 7, "pixels": [("a class with a long name", 0.25)] * 7}
    for png in (
        curves({"a": lines, "b": lines}),
        rows_of_pictures({"one": pictures, "two": pictures[:3]}),
        predictions(pictures, ["cat"] * 7, guesses),
        confusion({"a": np.eye(4), "b": np.ones((4, 4))}, list("wxyz")),
        trade({"tokens": (100.0, 0.7), "pixels": (3000.0, 0.8)}),
    ):
        width, height = size(png)
        assert min(width, height) > 100


def test_code_pictures_colour_equal_codes_alike() -> None:
    codebook = np.random.default_rng(0).normal(size=(5, 8))
    ids = np.array([[[0, 1], [1, 4]]])
    picture = code_pictures(ids, codebook)
    assert picture.shape == (1, 2, 2, 3)
    assert (picture[0, 0, 1] == picture[0, 1, 0]).all()
    assert not (picture[0, 0, 0] == picture[0, 0, 1]).all()
    assert picture.min() >= 0
    assert picture.max() <= 1
    assert code_pictures(ids, codebook[:, :2]).shape == (1, 2, 2, 3)  # fewer channels than colours


def test_page_is_self_contained_and_escaped() -> None:
    page = Page("A & B", "lead")
    page.heading("<script>")
    page.text("1 < 2")
    page.table(["name", "value"], [["<b>", "3"]])
    page.picture(b"\x89PNG", 'it\'s "quoted"')
    html = page.html()
    assert html.startswith("<!doctype html>")
    assert "<script>" not in html
    assert "<td>&lt;b&gt;</td><td class=n>3</td>" in html
    assert "http" not in html
    assert "src='data:image/png;base64," in html
    assert "alt='it&#x27;s" in html
