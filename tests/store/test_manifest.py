"""The manifest: it reads back what was sealed and refuses everything else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tilework.core.errors import DamageError, InputError
from tilework.store import manifest as module
from tilework.store.columns import ColumnEntry
from tilework.store.manifest import File, Manifest, read, write_manifest
from tilework.store.shard import ShardEntry

MANIFEST = Manifest(
    images=5,
    grid=(2, 3),
    vocabulary=10,
    codec="packed",
    classes=("ant", "grüße"),
    shards=(ShardEntry("shards/0.tiles", 3, 0), ShardEntry("shards/1.tiles", 2, 0)),
    columns=(ColumnEntry("label", "array"),),
    tokenizer={"name": "some", "sha256": "00"},
    preprocessing="resize 256, crop 224",
    licence="CC0",
    software="tilework test",
)


FILES = {"codebook.safetensors": b"", "columns/label.safetensors": b"label", "shards/0.tiles": b"zero"}
FILES["shards/1.tiles"] = b"one"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "shards").mkdir()
    (tmp_path / "columns").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_bytes(text)
    (tmp_path / "stray").write_text("not ours")
    write_manifest(tmp_path, MANIFEST)
    return tmp_path


def edit(root: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    text = json.loads((root / "manifest.json").read_text())
    change(text)
    (root / "manifest.json").write_text(json.dumps(text))


def test_sealed_manifest_reads_back_with_every_file(root: Path) -> None:
    files = {name: File(len(text), hashlib.sha256(text).hexdigest()) for name, text in FILES.items()}
    assert read(root) == replace(MANIFEST, files=files)


def test_manifest_says_its_format_version_and_seal(root: Path) -> None:
    text = json.loads((root / "manifest.json").read_text())
    assert (text.pop("format"), text.pop("version")) == ("tilework store", 2)
    assert text.pop("seal") == hashlib.sha256(json.dumps(text, sort_keys=True).encode()).hexdigest()


def test_the_frame_is_a_field_and_older_manifests_tell_it_in_words(root: Path) -> None:
    """A word in the sentence for people means nothing where the field is there."""
    words = "upright RGB, squashed (bicubic) to 16x24 px, values from 0 to 1"
    for frame in ("squash", "letterbox"):
        write_manifest(root, replace(MANIFEST, preprocessing=words, frame=frame))
        assert (json.loads((root / "manifest.json").read_text())["frame"], read(root).frame) == (frame, frame)
    write_manifest(root, MANIFEST)
    assert "frame" not in json.loads((root / "manifest.json").read_text())
    assert read(root).frame == "cover"
    write_manifest(root, replace(MANIFEST, preprocessing=words))  # as before there was the field
    assert read(root).frame == "squash"


def test_sealing_twice_gives_the_same_bytes(root: Path) -> None:
    before = (root / "manifest.json").read_bytes()
    write_manifest(root, MANIFEST)
    assert (root / "manifest.json").read_bytes() == before


def test_new_layout_of_the_same_text_is_accepted(root: Path) -> None:
    before = read(root)
    edit(root, lambda text: None)
    assert read(root) == before


def test_folder_without_a_manifest_is_no_store(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError, match=r"is not a token store: it has no manifest\.json"):
            read(path)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"\xff\xfe", b"nonsense", b"{} {}", b"9" * 5000, b"[" * 100_000], ids=range(7)
)
def test_manifest_that_is_not_json_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(text)
    with pytest.raises(DamageError, match=r"manifest\.json is not"):
        read(tmp_path)


@pytest.mark.parametrize("text", ["null", "3", "[]", "{}", '{"format": "other"}', '{"format": null}'])
def test_json_that_is_no_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DamageError, match=r"manifest\.json is not the manifest of a token store"):
        read(tmp_path)


@pytest.mark.parametrize("version", [0, 3, "1", None, [1], True])
def test_another_version_is_refused(root: Path, version: Any) -> None:
    edit(root, lambda text: text.update(version=version))
    with pytest.raises(
        DamageError, match=r"has store version .*, this software reads 1 and 2: update Tilework"
    ) as caught:
        read(root)
    assert str(root) in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [{"images": 6}, {"licence": "mine"}, {"classes": ["bee", "ant"]}, {"files": {}}, {"new": 1}, {"seal": "0" * 64}],
)
def test_edited_manifest_is_refused(root: Path, fields: dict[str, Any]) -> None:
    edit(root, lambda text: text.update(fields))
    with pytest.raises(DamageError, match=r"manifest\.json was changed after it was written"):
        read(root)


@pytest.mark.parametrize("key", ["seal", "images", "files", "grid"])
def test_manifest_without_a_key_is_refused(root: Path, key: str) -> None:
    edit(root, lambda text: text.pop(key))
    with pytest.raises(DamageError, match=r"manifest\.json was changed"):
        read(root)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"images": "5"}, "images"),
        ({"images": True}, "images"),
        ({"grid": 2}, "grid"),
        ({"columns": [{"name": "x", "kind": "pickle"}]}, "columns.0.kind"),
        ({"grid": [2, 3.5]}, "grid.1"),
        ({"vocabulary": None}, "vocabulary"),
        ({"shards": [{"file": "a"}]}, "shards.0"),
        ({"shards": {}}, "shards"),
        ({"classes": "ab"}, "classes"),
        ({"files": {"a": {"bytes": "1", "sha256": ""}}}, "files.a.bytes"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_malformed_manifest_is_refused(
    root: Path, forge: Callable[..., None], fields: dict[str, Any], path: str
) -> None:
    forge(root, **fields)
    with pytest.raises(DamageError, match=r"manifest\.json is malformed") as caught:
        read(root)
    assert path in str(caught.value)


def test_shards_must_add_up(root: Path, forge: Callable[..., None]) -> None:
    forge(root, images=6)
    with pytest.raises(DamageError, match="do not add up to 6 records"):
        read(root)


def test_too_large_a_manifest_is_not_even_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST", 100)
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail("it was read"))
    with pytest.raises(DamageError, match=r"manifest\.json is larger than a manifest can be"):
        read(root)


def test_manifest_of_a_written_store(tiny: Path, contents: SimpleNamespace) -> None:
    manifest = read(tiny)
    assert (manifest.images, manifest.grid, manifest.vocabulary, manifest.codec) == (7, (2, 3), 10, "packed")
    assert manifest.classes == contents.classes
    assert [shard.records for shard in manifest.shards] == [3, 3, 1]
    assert manifest.columns == (ColumnEntry("key", "text"), ColumnEntry("label", "array"))
    assert manifest.licence == "none"
    assert set(manifest.files) == {
        "codebook.safetensors",
        "columns/key.safetensors",
        "columns/label.safetensors",
        "shards/00000.tiles",
        "shards/00001.tiles",
        "shards/00002.tiles",
    }
