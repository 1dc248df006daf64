"""Names of classes come from lists as people have them; what is not in a list keeps its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilework.core.errors import InputError
from tilework.data.class_names import shown_names

IDS = ("n01440764", "n02012849", "n03126707")


@pytest.mark.parametrize(
    "text",
    [
        "n01440764 tench, Tinca tinca\nn02012849 crane\nn99999999 other\n",  # LOC_synset_mapping.txt
        "n01440764,tench\nn02012849,crane\n",
        "n01440764\ttench\r\nn02012849\tcrane\r\n",
        "class;name\nn01440764;tench\nn02012849; crane\n",
        '\ufeff"n01440764","tench, Tinca tinca"\n"n02012849","crane"\n# a remark\n\n',
    ],
)
def test_lists_as_people_have_them(text: str, tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text(text, "utf-8")
    assert shown_names(IDS, file) == ("tench", "crane", "n03126707")


def test_names_that_two_classes_share_stay_apart(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text("n02012849 crane\nn03126707 crane\n")
    assert shown_names(IDS, file) == ("n01440764", "crane (n02012849)", "crane (n03126707)")


def test_classes_with_spaces(tmp_path: Path) -> None:
    file = tmp_path / "words.csv"
    file.write_text("my cat,Felix\n")
    assert shown_names(("my cat", "my"), file) == ("Felix", "my")


def test_without_a_list_classes_have_their_own_names() -> None:
    assert shown_names(IDS, None) == IDS


@pytest.mark.parametrize("data", [b"cat,dog\n", b"", b"\xff\xfe\x00", b"n01440764\n"])
def test_lists_that_name_nothing_are_refused(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_bytes(data)
    with pytest.raises(InputError, match=r"names none of the 3 classes|cannot be read") as caught:
        shown_names(IDS, file)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="cannot be read"):
        shown_names(IDS, tmp_path)
