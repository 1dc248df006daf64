"""Parts of a page that a program writes anew, between two marks."""

from __future__ import annotations

from pathlib import Path

from tilework.core.errors import InputError
from tilework.core.files import write


def write_between(page: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between two marks, which stay; a page without them, or with others in between, is refused."""
    known = page.read_text(encoding="utf-8")
    first, last = known.find(begin), known.find(end)
    if known.count(begin) != 1 or known.count(end) != 1 or last < first:
        raise InputError(f"{page} has no place for it", f"write '{begin}' and below it '{end}', once each")
    write(page, f"{known[: first + len(begin)]}\n{text}{known[last:]}".encode())
