"""What every page must be: whole HTML that needs nothing from outside and runs nothing."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np

from tilework.report import Card, Page
from tilework.report.figures import draw_trade
from tilework.report.plots import bar_plot, colour_of, line_plot

EVIL = "<script>alert('x')</script>\"&'"
VOID = {"meta", "img", "br", "link", "input", "hr"}
ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "h4", "p", "div", "span", "b", "i", "br", "pre",
    "table", "thead", "tbody", "tr", "th", "td", "figure", "figcaption", "img", "details", "summary", "svg", "g",
    "defs", "path", "use", "text", "tspan", "clippath", "rect", "image", "lineargradient", "stop",
}  # fmt: skip
INSIDE = {"td": "tr", "th": "tr", "tbody": "table", "thead": "table", "figcaption": "figure", "summary": "details"}


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.problems: list[str] = []
        self.ids: list[str] = []
        self.refers: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._look(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._look(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1] != tag:
            self.problems.append(f"</{tag}> closes {self.open[-1:] or 'nothing'}")
        else:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text += data

    def _look(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ALLOWED:
            self.problems.append(f"<{tag}>")
        if tag in INSIDE and self.open[-1:] != [INSIDE[tag]]:
            self.problems.append(f"<{tag}> in {self.open[-1:]}")
        names = [name for name, _ in attrs]
        if len(set(names)) < len(names):
            self.problems.append(f"an attribute twice in <{tag}>")
        for name, value in attrs:
            value = value or ""
            if name.startswith("on"):
                self.problems.append(f"a script in <{tag} {name}>")
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href") and not value.startswith(("data:image/", "#")):
                self.problems.append(f"<{tag} {name}={value[:60]}>")
            if name == "href":
                self.refers.append(value[1:])
            self.refers += re.findall(r"url\(#([^)]+)\)", value)
            if re.search(r"url\((?!#)", value):
                self.problems.append(f"<{tag} {name}> fetches something")
        if tag == "img" and not dict(attrs).get("alt"):
            self.problems.append("<img> without words")


def check_page(html: str) -> str:
    """The text of a page, after all checks."""
    assert html.startswith("<!doctype html><html lang='en'><head><meta charset='utf-8'>")
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert reader.problems == []
    assert reader.open == []
    assert len(set(reader.ids)) == len(reader.ids)
    assert set(reader.refers) <= set(reader.ids)
    outside = re.sub(r"data:image/\w+;base64,[A-Za-z0-9+/=]+", "", html)
    style = "".join(re.findall(r"<style>(.*?)</style>", outside, re.DOTALL))
    assert not re.search(r"@import|url\(", style)
    assert not re.search(r"(src|href|srcset)\s*=\s*['\"]?(https?:)?//", outside)
    assert "<script" not in outside
    return reader.text


def full_page() -> Page:
    """Everything that a page can have, with names that mean harm."""
    page = Page(f"A & B {EVIL}", EVIL)
    summary = page.later()
    page.heading(EVIL)
    page.heading(EVIL, 3)
    page.text(EVIL)
    page.tiles([(EVIL, EVIL)])
    page.table([EVIL, "n"], [[EVIL, "3"], ["**bold**", "-"]], [0.5, None])
    page.picture(b"\x89PNG", EVIL)
    points = [(0.0, 1.0), (1.0, 2.0)]
    page.plots(
        [(line_plot({EVIL: points, "b": points}, EVIL, EVIL, points[0]), EVIL), (bar_plot([3, 2], "x", "y", True), "b")]
    )
    page.plots([(draw_trade({"tokens": (100.0, 0.7), "pixels": (3000.0, 0.8)}), "c")])
    page.legend(colour_of([EVIL, "b"]))
    rng = np.random.default_rng(0)
    photo, codes = (rng.integers(0, 255, (side, side, 3), np.uint8) for side in (96, 8))
    page.cards([Card([photo, codes], EVIL, [(EVIL, True), (EVIL, False), (EVIL, None)]), Card([codes], "x")])
    page.confusion(np.array([[3, 1], [0, 0]]), [EVIL, "b"])
    page.confusion(np.eye(50, dtype=np.int64), [EVIL] * 50)
    page.commands([EVIL])
    page.folded(EVIL, EVIL)
    page.markdown(f"# {EVIL}\n\n{EVIL} *not **resolved***\n\n| a | b |\n|---|---|\n| {EVIL} | 1.0 |\nafter it\n")
    summary.table(["first"], [["of all"]])
    return page
