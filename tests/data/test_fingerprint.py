"""Fingerprints of data: what changes them, and what does not. Oracle: data that differ in one thing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from small_data import write_images, write_objects, write_pairs, write_store
from tilework.data import ImageFolder, ImageSource, TokenSource
from tilework.data.detected import open_objects
from tilework.data.fingerprint import fingerprint, fingerprint_of
from tilework.data.pairs import open_pairs
from tilework.store import Store


def test_other_codes_labels_or_classes_are_other_data(tmp_path: Path) -> None:
    store = Store(write_store(tmp_path / "a.tok"))
    source = TokenSource(store, None)
    same = TokenSource(Store(write_store(tmp_path / "b.tok")), None)
    other = TokenSource(Store(write_store(tmp_path / "c.tok", seed=1)), None)
    assert fingerprint(source) == fingerprint(same) != fingerprint(other)
    assert fingerprint(source) == fingerprint_of(store, source.labels, source.classes)
    assert fingerprint(source) != fingerprint_of(store, source.labels[::-1], source.classes)
    assert fingerprint(source) != fingerprint_of(store, source.labels, source.classes[::-1])


def test_further_columns_of_a_store_do_not_matter(tmp_path: Path) -> None:
    store = Store(write_store(tmp_path / "a.tok"))
    before = fingerprint(TokenSource(store, None))
    store.add_column("weight", np.ones(len(store), np.float32))
    assert fingerprint(TokenSource(Store(tmp_path / "a.tok"), None)) == before


def test_folders_count_by_names_and_classes(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", classes=2, count=6, side=16)
    before = ImageSource.blank(ImageFolder.open(images), (16, 16))
    images.rename(tmp_path / "moved")
    moved = ImageSource.blank(ImageFolder.open(tmp_path / "moved"), (16, 16))
    assert fingerprint(before) == fingerprint(moved)
    folder = ImageFolder.open(tmp_path / "moved")
    assert fingerprint_of(folder, folder.labels, ("a", "b")) != fingerprint_of(folder, folder.labels, ("b", "a"))
    next((tmp_path / "moved").rglob("*.png")).unlink()
    assert fingerprint(ImageSource.blank(ImageFolder.open(tmp_path / "moved"), (16, 16))) != fingerprint(before)


def test_masks_and_boxes_count(tmp_path: Path) -> None:
    """A run went on with other masks."""
    pairs = open_pairs(write_pairs(tmp_path / "pairs", 4))
    assert pairs is not None
    before = fingerprint_of(pairs, pairs.labels, pairs.classes)
    assert pairs.masks[0] is not None
    pairs.masks[0].write_bytes(pairs.masks[0].read_bytes() + b"\0")
    assert fingerprint_of(pairs, pairs.labels, pairs.classes) != before

    file = write_objects(tmp_path / "boxes")
    found = open_objects(file)
    assert found is not None
    before = fingerprint_of(found, found.labels, found.classes)
    assert before == fingerprint_of(open_objects(file), found.labels, found.classes)
    turned = replace(found, objects=found.objects[::-1])
    assert fingerprint_of(turned, found.labels, found.classes) != before
    one = next(one for one in found.objects if one is not None and len(one))
    one.edges[0, 0] += 1
    assert fingerprint_of(found, found.labels, found.classes) != before
