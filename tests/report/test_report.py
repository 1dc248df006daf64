"""Figures are pictures, pages are self-contained and escape what they are given."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from html_checks import EVIL, check_page, full_page
from tilework.report import Card, Page, captioned_pictures, code_pictures, confusion, curves, rows_of_pictures
from tilework.report.plots import line_plot, run_plots
from tilework.report.svg import as_svg


def size(png: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(png)) as image:
        image.load()
        assert np.asarray(image).std() > 0  # something is drawn
        return image.size


def test_figures_are_pictures() -> None:
    lines = [{"step": i, "loss": 1 / (i + 1)} for i in range(9)] + [{"step": 9, "val_top1": 0.5}]
    pictures = np.random.default_rng(0).random((7, 8, 8, 3))
    for png in (
        curves({"a": lines, "b": lines}),
        rows_of_pictures({"one": pictures, "two": pictures[:3]}),
        captioned_pictures(
            list(pictures), ["a name"] * 7, [["cat 50%"]] * 7, [True, False, None] + [None] * 4, "title"
        ),
        confusion({"a": np.eye(4), "b": np.ones((4, 4))}, list("wxyz")),
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


def test_page_is_whole_self_contained_and_escaped() -> None:
    html = full_page().html()
    text = check_page(html)
    assert text.count(EVIL) >= 20
    assert "<td>&lt;script&gt;" in html
    assert html.index("of all") < html.index("<h2>")
    assert "<td class='n'>3</td>" in html
    assert "<b>bold</b>" in html
    assert "http" not in html


def test_page_cards_keep_masks_sharp_and_photographs_small() -> None:
    page = Page("x", "")
    mask = np.zeros((100, 100, 3), np.uint8)
    mask[30:] = (200, 10, 10)
    photo = np.random.default_rng(0).integers(0, 255, (100, 100, 3), np.uint8)
    page.cards([Card([mask, photo], "a")])
    assert page.html().count("data:image/png") == page.html().count("data:image/jpeg") == 1


def test_plots_take_the_colours_of_the_page() -> None:
    svg = as_svg(line_plot({"a": [(0, 1), (1, 3)]}, "step", "loss"), "a plot", "p1")
    assert svg.startswith('<svg role="img" aria-label="a plot"')
    assert "#000000" not in svg
    assert "#2f6db5" not in svg
    assert "var(--blue)" in svg
    assert ">loss</text>" in svg, "text is text"
    assert "xmlns" not in svg
    assert "<style" not in svg, "it would hold for the whole page"
    assert 'id="p1-' in svg


def test_plots_of_a_run_mark_its_best_evaluation() -> None:
    lines = [{"step": i, "loss": 1 / i, "val_top1": top} for i, top in enumerate((0.2, 0.75, 0.5), 1)]
    (_, loss), (drawn, best) = run_plots(lines, "top1", name="accuracy")
    assert loss == "Training loss."
    assert best == "Validation data; the ring is the best, 75 after step 2."
    assert drawn.axes[0].get_ylabel() == "validation: accuracy (%)"
    lines = [{"step": i, "val_loss": i} for i in (1, 2)]
    assert run_plots(lines, "loss", False)[0][1].endswith("the best, 1 after step 1.")
    assert run_plots(lines[:1], "loss", False) == [], "one point is no curve"


@pytest.mark.parametrize(("cell", "number"), [("1.5", True), ("+3.3", True), ("-", True), ("", True), ("x 3", False)])
def test_columns_of_numbers_are_aligned(cell: str, number: bool) -> None:
    page = Page("x", "")
    page.table(["name", "value"], [["a", "1"], ["b", cell]])
    assert ("<td class='n'>1</td>" in page.html()) == number
