"""Parts of a page between two marks. Oracle: pages written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilework.core.errors import InputError
from tilework.report.marked import write_between


def test_what_stands_between_the_marks_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n<!-- a -->\nold\n<!-- z -->\n# Text after\n")
    for text in ("new\n", "newer\n"):
        write_between(page, "<!-- a -->", "<!-- z -->", text)
        assert page.read_text() == f"# Title\n<!-- a -->\n{text}<!-- z -->\n# Text after\n"


@pytest.mark.parametrize(
    "text", ["", "a\n<!-- a -->\nb", "<!-- z -->", "<!-- z -->\n<!-- a -->\nb", "<!-- a -->" * 2 + "<!-- z -->"]
)
def test_a_page_without_both_marks_in_order_stays(tmp_path: Path, text: str) -> None:
    """All that followed the first mark was removed."""
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(InputError, match="has no place for it"):
        write_between(page, "<!-- a -->", "<!-- z -->", "new\n")
    assert page.read_text() == text
