"""Self-contained HTML page of text, tables and inline images."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1d2733; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
p.lead { color: #5b6570; margin-top: 0; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; } td, th { padding: .35rem 1.1rem .35rem 0; border-bottom: 1px solid #dde3ea; }
th { text-align: left; font-weight: 600; color: #5b6570; } td.n, th.n { text-align: right; }
td.n { font-variant-numeric: tabular-nums; }
figure { margin: 1rem 0; } img { max-width: 100%; height: auto; } figcaption { color: #5b6570; font-size: .9rem; }
"""


class Page:
    """A page that grows from top to bottom."""

    def __init__(self, title: str, lead: str) -> None:
        self._title = escape(title)
        self._parts = [f"<h1>{self._title}</h1><p class='lead'>{escape(lead)}</p>"]

    def heading(self, text: str) -> None:
        """Start a section."""
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def text(self, text: str) -> None:
        """A paragraph."""
        self._parts.append(f"<p>{escape(text)}</p>")

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table; all columns but the first are aligned as numbers."""

        def line(tag: str, cells: Sequence[str]) -> str:
            marked = (f"<{tag}{' class=n' if i else ''}>{escape(cell)}</{tag}>" for i, cell in enumerate(cells))
            return f"<tr>{''.join(marked)}</tr>"

        body = "".join(line("td", row) for row in rows)
        table = f"<table><thead>{line('th', head)}</thead><tbody>{body}</tbody></table>"
        self._parts.append(f"<div class='wide'>{table}</div>")

    def picture(self, png: bytes, caption: str) -> None:
        """An embedded image with a caption."""
        data = base64.b64encode(png).decode()
        words = escape(caption, quote=True)
        self._parts.append(
            f"<figure><img alt='{words}' src='data:image/png;base64,{data}'><figcaption>{words}</figcaption></figure>"
        )

    def html(self) -> str:
        """The whole page."""
        head = f"<meta charset='utf-8'><meta name='viewport' content='width=device-width'><title>{self._title}</title>"
        body = "\n".join(self._parts)
        return f"<!doctype html><html lang='en'><head>{head}<style>{_STYLE}</style></head><body>{body}</body></html>\n"
