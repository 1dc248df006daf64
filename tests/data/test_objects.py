"""Annotations of objects: COCO's and VOC's files, outlines, and what is wrong with them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from small_data import write_objects, write_voc
from tilework.core.errors import DamageError, InputError
from tilework.data import objects, voc_xml
from tilework.data.detected import (
    ObjectFolder,
    ObjectSource,
    ObjectValues,
    annotations_of,
    open_objects,
    pack_objects,
    unpack_objects,
)
from tilework.data.objects import Objects, check_shape, run_length_mask, run_lengths, shape_mask


def opened(path: Path) -> ObjectFolder:
    folder = open_objects(path)
    assert folder is not None
    return folder


def changed(path: Path, change: Callable[[Any], None]) -> Path:
    """The same file with something wrong."""
    plain = json.loads(path.read_text())
    change(plain)
    path.write_text(json.dumps(plain))
    return path


def test_categories_are_numbered_by_ascending_id(tmp_path: Path) -> None:
    path = write_objects(tmp_path)
    folder = opened(path)
    assert folder.classes == ("disc", "square", "ring")
    plain = json.loads(path.read_text())
    first = [one for one in plain["annotations"] if one["image_id"] == 0]
    objects = folder.objects[0]
    assert objects is not None
    assert objects.labels.tolist() == [{3: 0, 17: 1, 40: 2}[one["category_id"]] for one in first]
    x, y, w, h = first[0]["bbox"]
    assert objects.edges[0].tolist() == [x, y, x + w, y + h]


def test_images_are_found_beside_the_file_or_by_its_name(tmp_path: Path) -> None:
    path = write_objects(tmp_path / "a")
    assert opened(path).paths[0].is_file()
    (tmp_path / "b/annotations").mkdir(parents=True)
    moved = tmp_path / "b/annotations/instances_part2017.json"
    path.rename(moved)
    (tmp_path / "a/images").rename(tmp_path / "b/part2017")
    assert opened(moved).paths[0] == tmp_path / "b/part2017/000.png"
    inside = tmp_path / "b/part2017/_annotations.coco.json"
    moved.rename(inside)
    assert opened(tmp_path / "b/part2017").paths[0].is_file()


def test_an_image_without_objects_is_kept(tmp_path: Path) -> None:
    source = ObjectSource.scan(opened(write_objects(tmp_path, 4)), (64, 96))
    assert len(source) == 4
    assert len(source.objects(np.array([3]))[0]) == 0
    batch = ObjectValues().attach(source, "x").batch(np.array([3]))
    assert batch.columns["boxes"].valid.shape == (1, 0)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p: p["images"].append(p["images"][0]), "image id 0 is used twice"),
        (lambda p: p["annotations"].append(p["annotations"][0]), "annotation id 7 is used twice"),
        (lambda p: p["categories"].append(p["categories"][0]), "category id 40 is used twice"),
        (lambda p: p["categories"].append({"id": 41, "name": "disc"}), "two categories called 'disc'"),
        (lambda p: p["images"][1].update(file_name=p["images"][0]["file_name"]), "is listed twice"),
        (lambda p: p["images"][1].update(file_name="../x.png"), "names the image '../x.png'"),
        (lambda p: p["images"][1].update(file_name="9" * 400), "names the image '999"),
        (lambda p: p["images"][1].update(file_name="a/" * 1500 + "b.png"), "names the image 'a/a"),
        (lambda p: p["images"][1].update(file_name="\ud800.png"), "names the image"),
        (
            lambda p: p["categories"][1].update(name="\ud800"),
            r"has the class '\\ud800', which no file can hold: rename it",
        ),
        (lambda p: p.pop("categories"), "no 'categories'"),
        (lambda p: p.update(images=[]), "0 images"),
    ],
)
def test_files_that_contradict_themselves_are_refused(tmp_path: Path, change: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as refused:
        open_objects(changed(write_objects(tmp_path), change))
    assert "\n" not in str(refused.value)


def test_no_json(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{]")
    with pytest.raises(InputError, match="is no COCO file"):
        open_objects(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"bbox": [5, 5, 0, 9]}, "has no area"),
        ({"bbox": [500, 5, 9, 9]}, "lies outside the image"),
        ({"bbox": [float("nan"), 5, 9, 9]}, "is not a number"),
        ({"bbox": [5, 5]}, "not enough values"),
        ({"category_id": 99}, "no category has the id 99"),
        ({"image_id": 77}, "no image has the id 77"),
        ({"segmentation": [[1, 1, 2, 2]]}, "fewer than 3 points"),
        ({"segmentation": [[1, 1, 2, 2, 1e9, 3]]}, "far beyond the image"),
        ({"segmentation": {"size": [9, 9], "counts": [81]}}, r"are for \[9, 9\]"),
        ({"segmentation": {"size": [64, 96], "counts": [5]}}, "do not fill the image"),
        ({"segmentation": {"size": [64, 96], "counts": None}}, "neither numbers nor a text"),
        ({"segmentation": {"size": [64, 96], "counts": "o" * 500_000}}, "a run length of more than 60 bits"),
        ({"segmentation": {"size": [64, 96], "counts": "\ud800"}}, "can't encode"),
        ({"segmentation": [[0, 0, 383, 0] * 1500]}, "an outline of 1149000 pixels: at most 1048576"),
        ({"segmentation": "here"}, "neither polygons nor run lengths"),
    ],
)
def test_boxes_that_cannot_be_used_are_set_aside(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    path = changed(write_objects(tmp_path, 12), lambda p: p["annotations"][0].update(change))
    source = ObjectSource.scan(opened(path), (64, 96), max_broken=0.2)
    assert len(source) == 12  # the picture stays
    (one,) = source.boxes
    assert re.search(reason, one.reason)
    with pytest.raises(InputError, match=r"boxes in .* cannot be used"):
        ObjectSource.scan(opened(path), (64, 96), max_broken=0.01)


def test_boxes_are_cut_at_the_edge_and_counted(tmp_path: Path) -> None:
    path = changed(write_objects(tmp_path), lambda p: p["annotations"][0].update(bbox=[-5, 3, 20, 500]))
    source = ObjectSource.scan(opened(path), (64, 96))
    assert source.clipped == 1
    assert source.objects(np.array([0]))[0].edges[0].tolist() == [0, 3, 15, 64]


def test_images_that_are_missing_or_of_another_size(tmp_path: Path) -> None:
    path = write_objects(tmp_path, 8)
    (tmp_path / "images/001.png").unlink()
    Image.new("RGB", (10, 10)).save(tmp_path / "images/002.png")
    source = ObjectSource.scan(opened(path), (64, 96), max_broken=0.5)
    reasons = {one.path: one.reason for one in source.broken}
    assert "No such file" in reasons["001.png"]
    assert "it has 10x10 pixels, its annotations are for 64x96" in reasons["002.png"]
    with pytest.raises(InputError, match="2 of 8 images"):
        ObjectSource.scan(opened(path), (64, 96))


def test_outlines_are_needed_for_all_objects(tmp_path: Path) -> None:
    path = changed(write_objects(tmp_path), lambda p: p["annotations"][0].pop("segmentation"))
    source = ObjectSource.scan(opened(path), (64, 96))
    with pytest.raises(InputError, match=r"1 of .* objects of x have no outline"):
        ObjectValues(outlines=True).attach(source, "x")


def test_a_list_with_a_name_that_no_file_has(tmp_path: Path) -> None:
    path = write_voc(tmp_path, {"a": [("cell", 1, 1, 60, 40)]})
    path.write_text("9" * 300 + "\n")
    with pytest.raises(InputError, match="has the name '999"):
        open_objects(path)


def test_a_box_without_end_is_set_aside_without_a_warning(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    path = write_voc(tmp_path, {"a": [("cell", 1, 1, 60, 40), ("cell", 1, 1, 3e38, 3e38)]})
    objects, reasons, _, _ = opened(path).check(0)
    assert objects.areas[0] == 2400
    assert len(objects) + len(reasons) == 2
    assert not recwarn.list


@pytest.mark.parametrize("box", [(1e300, 1, 60, 40), (1e300, 1, 1e300, 9), (-3e38, -3e38, 3e38, 3e38)])
def test_edges_beyond_all_numbers_give_no_warning(
    tmp_path: Path, recwarn: pytest.WarningsRecorder, box: tuple[float, ...]
) -> None:
    path = write_voc(tmp_path, {"a": [("cell", 1, 1, 60, 40), ("cell", *box)]})  # type: ignore[list-item]
    objects, reasons, _, _ = opened(path).check(0)
    assert len(objects) + len(reasons) == 2
    assert not recwarn.list


def test_voc_counts_from_one(tmp_path: Path) -> None:
    path = write_voc(tmp_path, {"a": [("cell", 1, 1, 60, 40), ("hard", 11, 6, 20, 10)], "b": []})
    folder = opened(path)
    assert folder.classes == ("cell", "hard")
    objects = folder.objects[0]
    assert objects is not None
    assert objects.edges.tolist() == [[0, 0, 60, 40], [10, 5, 20, 10]]
    assert objects.ignored.tolist() == [False, True]
    assert objects.areas.tolist() == [2400, 50]
    (tmp_path / "classes.txt").write_text("hard\ncell\nspot\n")
    assert opened(path).classes == ("hard", "cell", "spot")
    with pytest.raises(InputError, match="a class 'cell' that training does not know"):
        open_objects(path, ("hard",))
    with pytest.raises(InputError, match=r"holds all parts of VOC: give .*train.txt"):
        open_objects(tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('<!DOCTYPE a [<!ENTITY b "c">]><annotation>&b;</annotation>', "declares a document type"),
        ("<annotation><object><name>cell</name></object></annotation>", "has no xmin"),
        ("<annotation><object><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></object>"
         "</annotation>", "has no name"),
        ("<annotation>", "is no XML"),
        ("<a>" * 40 + "</a>" * 40, "nested too deep"),
        ('<?xml version="1.0" encoding="foo"?><annotation/>', "is no XML (unknown encoding: foo)"),
        ('<?xml version="1.0" encoding="hex"?><annotation/>', "is no XML ('hex' is not a text encoding"),
        (None, "annotations are missing"),
    ],
)  # fmt: skip
def test_annotations_that_cannot_be_read(tmp_path: Path, text: str | None, reason: str) -> None:
    path = write_voc(tmp_path, {"a": [("cell", 1, 1, 9, 9)], "b": [("cell", 1, 1, 9, 9)]})
    file = tmp_path / "Annotations/b.xml"
    file.unlink() if text is None else file.write_text(text)
    source = ObjectSource.scan(opened(path), (40, 60), max_broken=0.6)
    (one,) = source.broken
    assert one.path == "b.jpg"
    assert reason in one.reason


def test_annotations_that_are_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_voc(tmp_path, {"a": [("cell", 1, 1, 9, 9)], "b": []})
    monkeypatch.setattr(voc_xml, "LARGEST", (tmp_path / "Annotations/b.xml").stat().st_size)
    with pytest.raises(InputError, match=r"no image of .* has an object"):
        open_objects(path)
    (tmp_path / "classes.txt").write_text("cell\n")
    assert opened(path).problems == (f"its annotations cannot be read (larger than {voc_xml.LARGEST:,} bytes)", "")


def test_annotations_that_are_a_pipe_are_not_waited_for(tmp_path: Path) -> None:
    path = write_voc(tmp_path, {"a": [("cell", 1, 1, 9, 9)], "b": []})
    (tmp_path / "Annotations/b.xml").unlink()
    os.mkfifo(tmp_path / "Annotations/b.xml")
    assert opened(path).problems == ("", "its annotations cannot be read (not a regular file)")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("caf\xe9\ncell\n".encode("latin-1"), "classes.txt cannot be read: 'utf-8'"),
        (b"cat\ncat\ncell\n", "a class twice"),
    ],
)
def test_lists_of_classes_that_cannot_be_used(tmp_path: Path, text: bytes, what: str) -> None:
    path = write_voc(tmp_path, {"a": [("cell", 1, 1, 9, 9)]})
    (tmp_path / "classes.txt").write_bytes(text)
    with pytest.raises(InputError, match=what) as refused:
        open_objects(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["/labels.txt", "/x/labels.txt"])
def test_a_list_near_the_root_is_no_voc(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(Path, "is_file", lambda path: str(path) == name)
    assert annotations_of(Path(name)) is None


def test_run_lengths_are_those_of_pycocotools() -> None:
    tools = pytest.importorskip("pycocotools.mask")
    rng = np.random.default_rng(0)
    for shape in ((7, 11), (40, 33), (1, 1)):
        mask = rng.random(shape) < 0.4
        packed = tools.encode(np.asfortranarray(mask.astype(np.uint8)))
        text = {"size": list(shape), "counts": packed["counts"].decode()}
        assert not check_shape(text, shape)
        assert np.array_equal(run_length_mask(text, shape), mask)
        assert (
            tools.frPyObjects({"size": list(shape), "counts": run_lengths(text)}, *shape)["counts"] == packed["counts"]
        )


def test_layers_hold_every_outline(tmp_path: Path) -> None:
    for one in opened(write_objects(tmp_path, 6, most=8)).objects:
        assert one is not None
        layers, which = one.layers((64, 96))
        assert len(layers) <= max(1, len(one))
        for shape, (layer, number) in zip(one.shapes, which.tolist(), strict=True):
            assert np.array_equal(layers[layer] == number, shape_mask(shape, (64, 96)))


def test_more_objects_than_a_layer_holds() -> None:
    shapes = tuple([[x, y, x + 2, y, x + 2, y + 2, x, y + 2]] for x in range(0, 60, 3) for y in range(0, 60, 3))
    many = Objects(np.zeros((400, 4), np.float32), np.zeros(400, int), np.zeros(400, bool), np.ones(400), shapes)
    layers, which = many.layers((64, 64))
    assert (len(layers), which[:, 1].max()) == (2, 255)


def test_outlines_that_would_fill_the_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects that fill their image need a layer each."""
    whole = {"size": [64, 96], "counts": [0, 64 * 96]}
    path = changed(write_objects(tmp_path, 4), lambda p: [one.update(segmentation=whole) for one in p["annotations"]])
    folder = opened(path)
    source = ObjectSource.scan(folder, (64, 96))
    most = max(len(one) for one in folder.objects if one is not None)
    assert most > 1
    monkeypatch.setattr(objects, "LARGEST_LAYERS", most * 64 * 96)
    ObjectValues(outlines=True).attach(source, "x").batch(np.arange(4))
    monkeypatch.setattr(objects, "LARGEST_LAYERS", most * 64 * 96 - 1)
    with pytest.raises(InputError, match=rf"00\d.png of x: objects overlap on {most} layers of 64x96 pixels: make"):
        ObjectValues(outlines=True).attach(source, "x")


def test_a_polygon_around_a_thin_image_is_not_drawn() -> None:
    """Its 40 million steps took 1.5 GB."""
    reason = check_shape([[0, 0, 39_999_999, 0, 5, 5]], (1, 10_000_000))
    assert reason == "an outline of 79999998 pixels: at most 1048576 are drawn"
    assert not check_shape([[0, 0, 400_000, 0, 5, 5]], (1, 10_000_000))


def test_what_a_store_keeps() -> None:
    objects = Objects.of([[1, 2, 3.5, 4], [0, 0, 9, 9]], [2, 0], [True, False])
    again = unpack_objects(pack_objects(objects), 3, "x")
    for name in ("edges", "labels", "ignored", "areas"):
        assert np.array_equal(getattr(again, name), getattr(objects, name))
    for column, value in ((4, 3.0), (4, 0.5), (4, -1.0), (0, np.nan)):
        record = pack_objects(objects)
        record[0, column] = value
        with pytest.raises(DamageError, match="damaged"):
            unpack_objects(record, 3, "x")
