"""Figures as SVG inside a page: sharp at any size, in the colours of the page, with its text as text."""

from __future__ import annotations

import io
import re
from html import escape

import matplotlib as mpl
from matplotlib.figure import Figure

INK = {  # colours of figures, and those of the page that stand for them in light and in dark
    "#000000": "currentColor",
    "#5b6570": "var(--soft)",
    "#2f6db5": "var(--blue)",
    "#d9822b": "var(--orange)",
    "#2e8b57": "var(--green)",
    "#c23b3b": "var(--red)",
}
NOTHING = {"Creator": None, "Date": None, "Format": None, "Type": None}
NARROW = 0.75  # of its own width, below which a plot is scrolled and not made smaller


def as_svg(figure: Figure, title: str, name: str) -> str:
    """An `svg` element. name: unlike that of all other figures on the page, since parts refer to each other by it."""
    text = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(text, format="svg", transparent=True, bbox_inches="tight", metadata=NOTHING)
    found = text.getvalue()
    body = found[found.index("<svg") :]
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.DOTALL)  # it would hold for the page
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)  # that of the page
    body = re.sub(r' xmlns(:\w+)?="[^"]*"', "", body).replace("xlink:href", "href")
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', body)
    body = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", body)
    for colour, ink in INK.items():
        body = body.replace(colour, ink)
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', body)
    assert box is not None
    width = float(box.group(1)) * 4 / 3  # of points in pixels
    style = f"width:{width:.0f}px;max-width:100%;min-width:{NARROW * width:.0f}px"
    head = f'<svg role="img" aria-label="{escape(title, quote=True)}" style="{style}" viewBox="{box.group(0)[9:]}'
    return head + body[body.index(">") :]
