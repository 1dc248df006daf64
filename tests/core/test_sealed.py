"""JSON that carries its own hash."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilework.core.errors import DamageError
from tilework.core.sealed import read_json, sealed, write_sealed

BODY = {"version": 1, "classes": ("ant", "bee"), "rate": 0.1, "names": {3: "three"}, "none": None}


def test_what_is_written_comes_back_as_json_has_it(tmp_path: Path) -> None:
    write_sealed(tmp_path / "a.json", BODY)
    assert read_json(tmp_path / "a.json") == {**BODY, "classes": ["ant", "bee"], "names": {"3": "three"}}
    assert (tmp_path / "a.json").read_bytes() == sealed(BODY)


def test_every_flipped_bit_is_refused_or_shows_nowhere(tmp_path: Path) -> None:
    """Oracle: the object itself. A flip of the key of the hash leaves the rest sound, with a key that nobody knows."""
    file, whole = tmp_path / "a.json", sealed(BODY)
    sound, refused, unseen = json.loads(json.dumps(BODY)), 0, 0
    for place in range(8 * len(whole)):
        data = bytearray(whole)
        data[place // 8] ^= 1 << place % 8
        file.write_bytes(data)
        try:
            found = read_json(file)
        except DamageError as error:
            refused += "a.json" in str(error)
        else:
            unseen += 1
            assert {key: found.get(key) for key in sound} == sound, place
    assert refused + unseen == 8 * len(whole)
    assert refused > unseen


def test_files_without_a_hash_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"rate": 0.1}')
    assert read_json(tmp_path / "a.json") == {"rate": 0.1}


@pytest.mark.parametrize("content", [b"", b"[1, 2]", b"{", b"\xff\xfe", b"[" * 100_000, b'{"seal": 5}'])
def test_other_content_is_refused_as_ours(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DamageError, match=r"a\.json"):
        read_json(tmp_path / "a.json")


def test_a_hash_that_must_be_there_is_missed(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"top1": 0.5}')
    assert read_json(tmp_path / "a.json") == {"top1": 0.5}
    with pytest.raises(DamageError, match="was changed"):
        read_json(tmp_path / "a.json", required=True)
