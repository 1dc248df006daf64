"""Boxes and outlines of COCO's JSON files (Lin et al., 2014).

Categories are numbered by ascending id, whatever gaps there are; boxes are x, y, width, height, all of them edges.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilework.core.errors import InputError
from tilework.data.file_list import lies_below
from tilework.data.image_files import Broken
from tilework.data.labels import check_names
from tilework.data.objects import Objects, check_shape

LARGEST = 4 << 30  # bytes of a file
FARTHEST = 1 << 24  # pixels: whole numbers are exact up to here


@dataclass(frozen=True)
class CocoImage:
    """An image of the list and what lies on it."""

    name: str
    sides: tuple[int, int]  # height, width
    objects: Objects


@dataclass(frozen=True)
class Coco:
    """A whole file."""

    classes: tuple[str, ...]
    images: tuple[CocoImage, ...]
    strays: tuple[Broken, ...]  # annotations that cannot be used, and why


def is_coco(path: Path) -> bool:
    """Whether a file begins as one of COCO does."""
    if path.suffix.lower() != ".json" or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(1).strip() in (b"{", b"")


def read_coco(path: Path) -> Coco:
    """The images of a file, sorted by name; refuses a file that contradicts itself."""
    if path.stat().st_size > LARGEST:
        raise InputError(f"{path} is larger than {LARGEST >> 30} GiB", "split it")
    try:
        plain = json.loads(path.read_bytes())
        listed, annotations = plain["images"], plain["annotations"]
        categories = sorted((int(c["id"]), str(c["name"])) for c in plain["categories"])
        images = {image["id"]: (str(image["file_name"]), _sides(image)) for image in listed}
        if len(images) < len(listed):
            raise ValueError(f"image id {_twice(image['id'] for image in listed)} is used twice")
        if len({number for number, _ in categories}) < len(categories):
            raise ValueError(f"category id {_twice(number for number, _ in categories)} is used twice")
        if len({name for name, _ in images.values()}) < len(images):
            raise ValueError(f"file {_twice(name for name, _ in images.values())!r} is listed twice")
        ids = [one["id"] for one in annotations if "id" in one]
        if len(set(ids)) < len(ids):
            raise ValueError(f"annotation id {_twice(ids)} is used twice")
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        hint = f"'images', 'annotations' and 'categories' are needed, each id once ({reason})"
        raise InputError(f"{path} is no COCO file", hint) from error
    if not images or not categories:
        raise InputError(f"{path} has {len(images)} images and {len(categories)} categories", "give at least one")
    names = tuple(name for _, name in categories)
    check_names(str(path), names)
    if len(set(names)) < len(names):
        raise InputError(f"{path} has two categories called '{_twice(names)}'", "give each its own name")
    strange = next((name for name, _ in images.values() if not lies_below(name)), None)
    if strange is not None:
        raise InputError(f"{path} names the image '{strange}'", "images lie below the file's folder")
    number = {category: i for i, (category, _) in enumerate(categories)}
    on: dict[Any, list[tuple[Any, ...]]] = defaultdict(list)
    strays: list[Broken] = []
    for one in annotations:
        try:
            on[one["image_id"]].append(_object(one, images, number))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)
            strays.append(Broken(f"{path.name}: annotation {one.get('id') if isinstance(one, dict) else one}", reason))
    found = [CocoImage(*about, _objects(on.get(image, []))) for image, about in images.items()]
    return Coco(names, tuple(sorted(found, key=lambda image: image.name)), tuple(strays))


def _object(one: dict[str, Any], images: dict[Any, Any], number: dict[int, int]) -> tuple[Any, ...]:
    """Edges, class, whether it is a crowd, area and outline of an annotation."""
    if one["image_id"] not in images:
        raise ValueError(f"no image has the id {one['image_id']}")
    if one["category_id"] not in number:
        raise ValueError(f"no category has the id {one['category_id']}")
    x, y, width, height = map(float, one["bbox"])
    if any(abs(edge) >= FARTHEST for edge in (x, y, width, height)):
        raise ValueError(f"the box {one['bbox']} lies far outside of any image")
    shape = one.get("segmentation") or None
    if shape is not None and (reason := check_shape(shape, images[one["image_id"]][1])):
        raise ValueError(reason)
    area = float(one.get("area", width * height))
    if not 0 <= area < FARTHEST**2:
        raise ValueError(f"an area of {area:g}")
    return (x, y, x + width, y + height), number[one["category_id"]], bool(one.get("iscrowd", 0)), area, shape


def _objects(found: list[tuple[Any, ...]]) -> Objects:
    edges, labels, crowd, areas, shapes = zip(*found, strict=True) if found else ((), (), (), (), ())
    return Objects(
        np.array(edges, np.float32).reshape(-1, 4),
        np.array(labels, np.int64),
        np.array(crowd, bool),
        np.array(areas, np.float32),
        tuple(shapes),
    )


def _sides(image: dict[str, Any]) -> tuple[int, int]:
    return int(image["height"]), int(image["width"])


def _twice(values: Any) -> Any:
    """The first value that occurs again."""
    seen: set[Any] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
