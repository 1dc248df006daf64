"""Objects of an image: boxes, classes, and their outlines as COCO writes them (polygons or run lengths).

M objects | h, w pixels of the image | L layers
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from tilework.core.errors import InputError, MachineError

Sides = tuple[int, int]  # height, width
IDS = 255  # objects of a layer
SMALLEST = 1e-3  # of a side, in pixels: less is none
LARGEST_LAYERS = 1 << 28  # bytes of the outlines of an image: a batch holds them for each of its images
LONGEST = 1 << 20  # pixels along an outline: drawing it takes about 100 bytes for each
MOST_BITS = 60  # of a run length; texts could hold numbers of any length


@dataclass(frozen=True)
class Objects:
    """What lies on one image."""

    edges: np.ndarray  # (M, 4) float32: x0, y0, x1, y1 in pixels
    labels: np.ndarray  # (M,) int64
    ignored: np.ndarray  # (M,) bool: crowds of COCO, difficult objects of VOC
    areas: np.ndarray  # (M,) float32, by which objects are small, medium or large: of outlines where they are known
    shapes: tuple[Any, ...] = ()  # polygons or run lengths of each, None where there is none; empty: of boxes only

    @staticmethod
    def of(edges: Sequence[Sequence[float]], labels: Sequence[int], ignored: Sequence[bool] | None = None) -> Objects:
        """Boxes alone."""
        with np.errstate(over="ignore", invalid="ignore"):  # boxes without end: `inside` sets them aside
            boxes = np.array(edges, np.float32).reshape(-1, 4)
            areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        flags = np.zeros(len(boxes), bool) if ignored is None else np.array(ignored, bool)
        return Objects(boxes, np.array(labels, np.int64), flags, areas)

    def __len__(self) -> int:
        return len(self.edges)

    def take(self, which: np.ndarray) -> Objects:
        """Some of them. which: positions."""
        shapes = tuple(self.shapes[i] for i in which) if self.shapes else ()
        return Objects(self.edges[which], self.labels[which], self.ignored[which], self.areas[which], shapes)

    def inside(self, sides: Sides) -> tuple[Objects, list[str], int]:
        """Those that an image can show, cut at its edges; why others cannot be used; how many were cut."""
        height, width = sides
        low, high = np.zeros(4, np.float32), np.array([width, height, width, height], np.float32)
        finite = np.isfinite(self.edges).all(1)
        with np.errstate(over="ignore", invalid="ignore"):
            empty = ((self.edges[:, 2:] - self.edges[:, :2]) < SMALLEST).any(1)
        cut = np.clip(self.edges, low, high)
        outside = ((cut[:, 2:] - cut[:, :2]) < SMALLEST).any(1)
        reasons = []
        for i in np.flatnonzero(~finite | empty | outside):
            why = "is not a number" if not finite[i] else "has no area" if empty[i] else "lies outside the image"
            reasons.append(f"box {np.round(self.edges[i], 2).tolist()} {why}")
        good = np.flatnonzero(finite & ~empty & ~outside)
        beyond = int((np.abs(cut[good] - self.edges[good]) > SMALLEST).any(1).sum())
        return Objects(cut, self.labels, self.ignored, self.areas, self.shapes).take(good), reasons, beyond

    def check_layers(self, sides: Sides) -> None:
        """Refuse outlines of which `layers` would be too many; they are drawn only if there can be so many."""
        if len(self) * sides[0] * sides[1] > LARGEST_LAYERS:
            self.layers(sides)

    def layers(self, sides: Sides) -> tuple[np.ndarray, np.ndarray]:
        """Outlines as maps of numbers, (L, h, w) uint8, 0 for nothing, and layer and number of each object, (M, 2).

        Objects that overlap lie on different layers, the first that has room, so that a few hold them all. More
        bytes than LARGEST_LAYERS are refused.
        """
        layers: list[np.ndarray] = []
        counts: list[int] = []
        found = np.zeros((len(self), 2), np.int64)
        for i, shape in enumerate(self.shapes):
            mask = np.ascontiguousarray(shape_mask(shape, sides))  # in the order of layers, which is far faster
            free = (n for n, layer in enumerate(layers) if counts[n] < IDS and not layer[mask].any())
            n = next(free, len(layers))
            if n == len(layers):
                if (n + 1) * mask.size > LARGEST_LAYERS:
                    what = f"objects overlap on {n + 1} layers of {sides[0]}x{sides[1]} pixels"
                    raise InputError(what, "make the image smaller, or leave objects out")
                layers.append(np.zeros(sides, np.uint8))
                counts.append(0)
            counts[n] += 1
            layers[n][mask] = counts[n]
            found[i] = n, counts[n]
        return np.stack(layers or [np.zeros(sides, np.uint8)]), found


def shape_mask(shape: Any, sides: Sides) -> np.ndarray:
    """The pixels of an outline, (h, w) bool."""
    if isinstance(shape, dict):
        return run_length_mask(shape, sides)
    tools = coco_masks()
    return tools.decode(tools.merge(tools.frPyObjects(shape, *sides))).astype(bool)


def run_length_mask(shape: dict[str, Any], sides: Sides) -> np.ndarray:
    """Pixels of run lengths: columns from top to bottom, runs without and with the object in turn."""
    counts = np.array(run_lengths(shape), np.int64)
    values = np.arange(len(counts)) % 2 == 1
    return np.repeat(values, counts).reshape(sides[1], sides[0]).T


def run_lengths(shape: dict[str, Any]) -> list[int]:
    """Plain counts; a text holds five bits a letter, from the third on as differences from the one two before."""
    counts = shape["counts"]
    if isinstance(counts, list):
        return counts
    found: list[int] = []
    value = shift = 0
    for letter in counts.encode() if isinstance(counts, str) else counts:
        code = letter - 48
        if shift >= MOST_BITS:
            raise ValueError(f"a run length of more than {MOST_BITS} bits")
        value |= (code & 31) << shift
        shift += 5
        if not code & 32:
            if code & 16:
                value -= 1 << shift
            found.append(value + (found[-2] if len(found) > 2 else 0))
            value = shift = 0
    return found


def check_shape(shape: Any, sides: Sides) -> str:
    """Why an outline cannot be used on an image; empty if it can. Nothing is drawn, and sizes are looked at first."""
    height, width = sides
    if isinstance(shape, dict):
        if shape.get("size") != [height, width]:
            return f"its run lengths are for {shape.get('size')}, the image has {[height, width]}"
        counts = shape.get("counts")
        plain = isinstance(counts, list) and all(isinstance(count, int) for count in counts)
        if not plain and not isinstance(counts, str):
            return "its run lengths are neither numbers nor a text"
        try:
            runs = run_lengths(shape)
        except ValueError as error:
            return str(error)
        if min(runs, default=-1) < 0 or sum(runs) != height * width:
            return "its run lengths do not fill the image"
        return ""
    if not isinstance(shape, list) or not shape:
        return "its outline is neither polygons nor run lengths"
    for polygon in shape:
        if not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2:
            return "a polygon has fewer than 3 points"
        if not all(isinstance(value, int | float) and abs(value) < 4 * max(sides) for value in polygon):
            return "a polygon reaches far beyond the image"
    if sum(map(len, shape)) * 4 * max(sides) > LONGEST:  # else no edges are so long
        length = sum(map(_length, shape))
        if length > LONGEST:
            return f"an outline of {length:.0f} pixels: at most {LONGEST} are drawn"
    return ""


def _length(polygon: list[float]) -> float:
    """Pixels along its edges, as they are drawn."""
    points = np.array(polygon, np.float64).reshape(-1, 2)
    return float(np.abs(points - np.roll(points, 1, 0)).max(1).sum())


def coco_masks() -> Any:
    """pycocotools' masks."""
    return coco_module("mask")


def coco_module(name: str) -> Any:
    """A part of pycocotools, which polygons and average precision need."""
    try:
        return import_module(f"pycocotools.{name}")
    except ImportError as error:
        raise MachineError(
            "polygons and average precision need pycocotools", "pip install 'tilework[detect]'"
        ) from error
