"""Labels of other people's data."""

from __future__ import annotations

from pathlib import Path

import pytest

from small_shards import write_tar
from tilework.core.errors import InputError
from tilework.data.labels import number_labels
from tilework.data.open_images import open_images


@pytest.mark.parametrize(("found", "names"), [(["cat", "a\ud800"], None), ([0, 1], ["cat", "a\ud800"])])
def test_names_that_no_file_can_hold_are_refused(found: list[int | str], names: list[str] | None) -> None:
    """Half a character, which JSON can write and UTF-8 cannot."""
    with pytest.raises(InputError, match=r"^x has the class 'a\\ud800', which no file can hold: rename it$"):
        number_labels("x", found, names)


def test_half_a_character_in_a_tar_file(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("a.jpg", b"x"), ("a.json", b'{"label": "\\ud800"}')])
    with pytest.raises(InputError, match="which no file can hold"):
        open_images(path)
