"""Self-contained HTML page of text, tables, plots and pictures: light and dark, for wide and narrow screens.

N pictures | H, W pixels | K classes
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from tilework.report.svg import INK, as_svg

_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1d2733; --soft: #5b6570; --line: #dde3ea; --card: #f5f7f9;
  --blue: #2f6db5; --orange: #d9822b; --green: #2e8b57; --red: #c23b3b; }
@media (prefers-color-scheme: dark) { :root { --ground: #14181d; --ink: #dfe5ec; --soft: #9aa6b2; --line: #333c46;
  --card: #1d232a; --blue: #6ba6ea; --orange: #eda35a; --green: #5fbf8a; --red: #ee7b7b; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 62rem;
  margin: 2rem auto; padding: 0 1rem; overflow-wrap: break-word; }
h1 { font-size: 1.7rem; margin-bottom: .2rem; } h2 { font-size: 1.3rem; margin-top: 2.4rem; }
h3 { font-size: 1.05rem; margin-top: 1.8rem; } p.lead { color: var(--soft); margin-top: 0; }
.wide { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; } td, th { padding: .35rem 1.1rem .35rem 0; border-bottom: 1px solid var(--line); }
th { text-align: left; font-weight: 600; color: var(--soft); vertical-align: bottom; } td.n, th.n { text-align: right; }
td.n { font-variant-numeric: tabular-nums; white-space: nowrap; }
td i.bar { display: inline-block; height: .7rem; background: var(--blue); border-radius: 2px; vertical-align: middle; }
td.bars { min-width: 8.5rem; padding-right: 1rem; } td.long { min-width: 15rem; }
@media (max-width: 40rem) { table { font-size: .85rem; } td, th { padding-right: .5rem; }
  td.bars { min-width: 4rem; } td.long { min-width: 7rem; } td.n { white-space: normal; } }
figure { margin: 1rem 0; } figcaption { color: var(--soft); font-size: .9rem; }
img { max-width: 100%; height: auto; } img.paper { background: #fff; border-radius: 4px; }
.plots { display: flex; flex-wrap: wrap; gap: 0 1.5rem; }
.plots figure { flex: 0 1 auto; min-width: 0; max-width: 100%; }
svg { display: block; height: auto; } svg text { fill: currentColor; }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0; }
.tiles div { background: var(--card); border-radius: 6px; padding: .6rem .9rem; min-width: 7rem; }
.tiles b { display: block; font-size: 1.35rem; } .tiles span { color: var(--soft); font-size: .85rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, var(--w)), 1fr)); gap: 1rem; }
.cards figure { margin: 0; min-width: 0; font-size: .85rem; } .cards div.images { display: flex; gap: 2px; }
.cards img { flex: 1 1 0; min-width: 0; width: 100%; border-radius: 4px; object-fit: contain; }
.cards img.codes { image-rendering: pixelated; }
.cards figcaption { overflow-wrap: anywhere; } .right { color: var(--green); } .wrong { color: var(--red); }
table.grid { font-size: .75rem; margin-bottom: .4rem; }
table.grid td, table.grid th { padding: 0; border: 1px solid var(--line); }
table.grid td { width: 1.9rem; min-width: 1.9rem; height: 1.6rem; text-align: center;
  background: color-mix(in srgb, var(--blue) calc(100% * var(--s, 0)), var(--ground)); }
table.grid td.deep { color: #fff; } table.grid tbody th { padding-right: .4rem; text-align: right; font-weight: 400; }
table.grid thead th { writing-mode: vertical-rl; transform: rotate(180deg); font-weight: 400; padding: .3rem 0; }
@media (prefers-color-scheme: dark) { table.grid td.deep { color: #10141a; } }
pre { background: var(--card); padding: .7rem .9rem; border-radius: 6px; overflow-x: auto; font-size: .85rem; }
pre.commands { white-space: pre-wrap; overflow-wrap: anywhere; }
details { margin: .6rem 0; } summary { cursor: pointer; color: var(--soft); }
.swatch { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin-right: .3rem; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .85rem; margin: .5rem 0; }
"""
GRID = 40  # classes of a confusion matrix with numbers in it; a larger one is a picture
LONG = 32  # letters of a cell that gets room on a narrow screen
SMALL = 64  # pixels of a side, up to which a picture is drawn as squares
NUMBER = re.compile(r"[-+±−]?\d.*|[-–]?")  # a cell that is aligned as a number
BLUE = (47, 109, 181)
MARKS = {True: " class='right'>✓ ", False: " class='wrong'>✗ ", None: ">"}


@dataclass(frozen=True)
class Card:
    """Pictures of one sample side by side, and what is said of it."""

    pictures: Sequence[np.ndarray]  # (H, W, 3) uint8 each
    title: str
    lines: Sequence[tuple[str, bool | None]] = ()  # text, and whether it is right, wrong, or neither


class Page:
    """A page that grows from top to bottom."""

    def __init__(self, title: str, lead: str) -> None:
        self._title = escape(title)
        self._parts: list[str | Page] = [f"<h1>{self._title}</h1><p class='lead'>{escape(lead)}</p>"]

    def later(self) -> Page:
        """A place on the page to be filled when what follows is known."""
        part = Page("", "")
        part._parts.clear()
        self._parts.append(part)
        return part

    def heading(self, text: str, level: int = 2) -> None:
        """Start a section, or a part of one."""
        self._parts.append(f"<h{level}>{escape(text)}</h{level}>")

    def text(self, text: str) -> None:
        """A paragraph."""
        self._parts.append(f"<p>{escape(text)}</p>")

    def tiles(self, figures: Sequence[tuple[str, str]]) -> None:
        """Headline figures. figures: what it is, its value."""
        inside = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in figures)
        self._parts.append(f"<div class='tiles'>{inside}</div>")

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], bars: Sequence[float | None] = ()) -> None:
        """A table; columns of numbers are aligned to the right. bars: of each row, from 0 to 1, drawn behind it."""
        marks = [
            " class='n'" if i and all(NUMBER.fullmatch(row[i].strip("*")) for row in rows) else ""
            for i in range(len(head))
        ]

        def line(tag: str, cells: Sequence[str], more: str = "") -> str:
            long = " class='long'" if tag == "td" else ""
            kinds = (mark or (long if len(cell) > LONG else "") for mark, cell in zip(marks, cells, strict=True))
            scope = " scope='col'" if tag == "th" else ""
            marked = (f"<{tag}{scope}{kind}>{_inline(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))
            return f"<tr>{''.join(marked)}{more}</tr>"

        ends = [f"<td class='bars'>{_bar(share)}</td>" for share in bars] or [""] * len(rows)
        body = "".join(line("td", row, end) for row, end in zip(rows, ends, strict=True))
        top = line("th", head, "<td></td>" if bars else "")
        self._parts.append(f"<div class='wide'><table><thead>{top}</thead><tbody>{body}</tbody></table></div>")

    def picture(self, png: bytes, caption: str) -> None:
        """An embedded image with a caption."""
        words = escape(caption, quote=True)
        image = f"<img class='paper' alt='{words}' src='{_data('png', png)}'>"
        self._parts.append(f"<figure>{image}<figcaption>{words}</figcaption></figure>")

    def plots(self, figures: Sequence[tuple[Figure, str]]) -> None:
        """Plots beside each other where there is room, each with a caption; they follow the colours of the page."""
        drawn = (
            f"<figure><div class='wide'>{as_svg(figure, caption, f'p{len(self._parts)}-{number}')}</div>"
            f"<figcaption>{escape(caption)}</figcaption></figure>"
            for number, (figure, caption) in enumerate(figures)
        )
        self._parts.append(f"<div class='plots'>{''.join(drawn)}</div>")

    def cards(self, cards: Sequence[Card]) -> None:
        """Samples in a grid that fits the screen."""
        wide = max((len(card.pictures) for card in cards), default=1)
        self._parts.append(f"<div class='cards' style='--w:{150 * wide}px'>{''.join(map(_card, cards))}</div>")

    def legend(self, colours: Mapping[str, str]) -> None:
        """What colours stand for. colours: name to '#rrggbb'."""
        inside = "".join(
            f"<span><i class='swatch' style='background:{INK.get(colour, colour)}'></i>{escape(name)}</span>"
            for name, colour in colours.items()
        )
        self._parts.append(f"<div class='legend'>{inside}</div>")

    def confusion(self, counts: np.ndarray, classes: Sequence[str]) -> None:
        """Counts of true classes (rows) and predictions (columns), (K, K), coloured by the share of the true class."""
        shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
        if len(classes) > GRID:
            alpha = (255 * shares).round().astype(np.uint8)
            pixels = np.dstack([*(np.full_like(alpha, value) for value in BLUE), alpha])
            source = _data("png", _encoded(pixels, "PNG"))
            side = f"width='{min(900, 2 * len(classes))}'"
            words = "Rows: true classes; columns: predictions; the darker, the larger the share of the true class."
            image = f"<img {side} style='image-rendering:pixelated;border:1px solid var(--line)' alt='{words}'"
            self._parts.append(f"<figure>{image} src='{source}'><figcaption>{words}</figcaption></figure>")
            return
        head = "".join(f"<th scope='col'>{escape(_shorten(name))}</th>" for name in classes)
        cells = ("".join(map(_square, *pair)) for pair in zip(counts.tolist(), shares.tolist(), strict=True))
        rows = "".join(
            f"<tr><th scope='row'>{escape(_shorten(name))}</th>{row}</tr>"
            for name, row in zip(classes, cells, strict=True)
        )
        table = f"<table class='grid'><thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table>"
        self._parts.append(
            f"<div class='wide'>{table}</div><p class='lead'>Rows: true classes; columns: predictions.</p>"
        )

    def commands(self, lines: Sequence[str]) -> None:
        """Command lines to copy."""
        self._parts.append(f"<pre class='commands'>{escape(chr(10).join(lines))}</pre>")

    def folded(self, title: str, text: str) -> None:
        """A long text, closed until it is asked for."""
        self._parts.append(f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>")

    def markdown(self, text: str, level: int = 2) -> None:
        """Headings, paragraphs and tables of Markdown. level: of its highest heading."""
        for block in re.split(r"\n\s*\n", text.strip()):
            lines = block.strip().splitlines()
            if lines and lines[0].startswith("#"):
                marks, _, words = lines[0].partition(" ")
                self.heading(words, min(4, level - 1 + len(marks)))
            elif lines and lines[0].startswith("|"):
                cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines if "|" in line]
                self.table(cells[0], cells[2:])
                rest = " ".join(line for line in lines if "|" not in line)
                self._parts += [f"<p>{_inline(rest)}</p>"] if rest else []
            elif lines:
                self._parts.append(f"<p>{_inline(' '.join(lines))}</p>")

    def html(self) -> str:
        """The whole page."""
        view = "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        generator = "<meta name='generator' content='Tilework'>"  # by which 'report' knows a page that it may replace
        head = f"<meta charset='utf-8'>{generator}{view}<title>{self._title}</title><style>{_STYLE}</style>"
        text = f"<!doctype html><html lang='en'><head>{head}</head><body>{self._body()}</body></html>\n"
        return text.encode(errors="backslashreplace").decode()  # names of files may hold halves of characters

    def _body(self) -> str:
        return "\n".join(part if isinstance(part, str) else part._body() for part in self._parts)


def _inline(text: str) -> str:
    """Text with **bold** and *slanted* parts."""
    bold = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(text))
    return re.sub(r"(?<![\w*])\*([^*\s][^*]*)\*", r"<i>\1</i>", bold)


def _bar(share: float | None) -> str:
    return "" if share is None else f"<i class='bar' style='width:{100 * min(1, max(0, share)):.1f}%'></i>"


def _square(count: int, share: float) -> str:
    deep = " class='deep'" if share > 0.55 else ""
    return f"<td{deep} style='--s:{share:.3f}'>{count or ''}</td>" if count else "<td></td>"


def _card(card: Card) -> str:
    images = "".join(_image(picture, card.title) for picture in card.pictures)
    lines = "".join(f"<br><span{MARKS[right]}{escape(text)}</span>" for text, right in card.lines)
    return f"<figure><div class='images'>{images}</div><figcaption>{escape(card.title)}{lines}</figcaption></figure>"


def _image(picture: np.ndarray, name: str) -> str:
    mark = " class='codes'" if max(picture.shape[:2]) <= SMALL else ""
    flat = Image.fromarray(picture).getcolors(256) is not None  # a mask
    kind = "PNG" if mark or flat else "JPEG"
    source = _data(kind.lower(), _encoded(picture, kind))
    return f"<img{mark} alt='{escape(name, quote=True)}' src='{source}'>"


def _encoded(picture: np.ndarray, kind: str) -> bytes:
    data = io.BytesIO()
    Image.fromarray(picture).save(data, kind, quality=85)
    return data.getvalue()


def _data(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _shorten(name: str, length: int = 20) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"
