"""Data with objects: images with boxes, and stores that keep boxes as a column.

FILE.json                              COCO; images beside the file, in 'images' there or above, or in the folder that
                                       its name ends in (instances_train2017.json: train2017)
DIR with _annotations.coco.json        the same
DIR/ImageSets/Main/PART.txt            Pascal VOC: names in DIR/JPEGImages and DIR/Annotations

N images | B batch | M objects
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

import numpy as np
import torch

from tilework.core.batch import Batch
from tilework.core.errors import ConfigError, DamageError, InputError, UnknownClassError
from tilework.core.location import Location, Url, is_store
from tilework.data.boxes import Boxes
from tilework.data.coco_json import is_coco, read_coco
from tilework.data.columns import ColumnKind, column_kinds
from tilework.data.file_list import FileList
from tilework.data.image_files import SUFFIXES, Broken, Frame, decode_image
from tilework.data.image_folder import ImageFolder
from tilework.data.images import ImageSource, decode_all
from tilework.data.objects import Objects
from tilework.data.pairs import NAMES, image_sides, lines_of, voc_names, voc_root
from tilework.data.placement import canvas_affine
from tilework.data.source import KEEP_BYTES, Around, Source, innermost
from tilework.data.voc_xml import read_voc
from tilework.store import Store
from tilework.store.columns import RecordColumn

COLUMN, SIDES = "boxes", "sides"  # of stores too
OUTLINES = "instances"
INSIDE = ("_annotations.coco.json", "annotations.json")  # of a folder of images
GUIDE = "see docs/detection.md"
FIELDS = 7  # of a stored object: edges, class, whether it is ignored, area


@dataclass(frozen=True)
class ObjectFolder(ImageFolder):
    """Images of a folder, each with its objects; their classes are those of the objects."""

    objects: tuple[Objects | None, ...] = ()  # None: its annotations cannot be read
    sides: tuple[tuple[int, int] | None, ...] = ()  # height and width, where the annotations say them
    strays: tuple[Broken, ...] = ()  # annotations that cannot be used
    problems: tuple[str, ...] = ()  # of each image, empty where there is none

    def take(self, good: np.ndarray) -> ObjectFolder:
        """The images at the positions given."""
        parts = (self.objects, self.sides, self.problems)
        objects, sides, problems = (tuple(part[i] for i in good) for part in parts)
        return replace(
            self, paths=self.paths.take(good), labels=self.labels[good], objects=objects, sides=sides, problems=problems
        )

    def check(self, index: int) -> tuple[Objects, list[str], int, tuple[int, int]]:
        """Objects of an image cut at its edges, why others cannot be used, how many were cut, and its size.

        Refuses (ValueError) an image of another size than its annotations say.
        """
        objects, sides = self.objects[index], image_sides(self.paths[index])
        if objects is None:
            raise ValueError(self.problems[index])
        if self.sides[index] not in (None, sides):
            (h, w), (height, width) = self.sides[index], sides  # type: ignore[misc]
            raise ValueError(f"it has {height}x{width} pixels, its annotations are for {h}x{w}")
        return *objects.inside(sides), sides


def open_objects(path: Path, classes: Sequence[str] | None = None) -> ObjectFolder | None:
    """Images with objects at a path; None where there are none. classes: number them so, and refuse others."""
    file = annotations_of(path)
    if file is None:
        return None
    return _coco(file, classes) if file.suffix == ".json" else _voc(file, classes)


def annotations_of(path: Path) -> Path | None:
    """The file that lists images with objects, if a path means one."""
    if path.is_dir() and (path / "JPEGImages").is_dir() and (path / "Annotations").is_dir():
        raise InputError(f"{path} holds all parts of VOC", f"give {path / 'ImageSets/Main/train.txt'}")
    if path.is_dir():
        return next((path / name for name in INSIDE if is_coco(path / name)), None)
    voc = path.suffix == ".txt" and path.is_file() and (voc_root(path) / "Annotations").is_dir()
    return path if voc or is_coco(path) else None


def boxes_near(path: Path) -> tuple[str, str] | None:
    """Where annotations of boxes lie, in a folder of images or beside it, and what reads them; None without any."""
    if path.is_file():
        return (path.name, _detector(path)) if annotations_of(path) else None
    for root in (path, path.parent):
        lists = sorted((root / "ImageSets/Main").glob("*.txt"), key=lambda file: file.name != "train.txt")
        if lists and (root / "Annotations").is_dir():
            return "Annotations", _detector(lists[0])
        files = [*(root / name for name in INSIDE), *sorted(root.glob("instances*.json"))]
        files += sorted((root / "annotations").glob("*.json"))
        if file := next(filter(is_coco, files), None):
            return file.relative_to(root).as_posix(), _detector(file)
        for folder in ("annotations", "Annotations", ""):
            file = next((root / folder).glob("*.xml"), None)
            if file and (folder or any(file.with_suffix(end).is_file() for end in SUFFIXES)):
                needs = "JPEGImages, Annotations and a list of names in ImageSets/Main"
                return f"{folder}/*.xml".lstrip("/"), f"put them into folders as Pascal VOC has, {needs}, {GUIDE}"
    return None


def _detector(file: Path) -> str:
    return f"train a detector with 'tilework train detect_cpu --data {quote(str(file))} --out RUN', {GUIDE}"


def _coco(path: Path, classes: Sequence[str] | None) -> ObjectFolder:
    found = read_coco(path)
    if classes is not None and tuple(classes) != found.classes:
        what = f"{path} has other categories than training ({len(found.classes)}, not {len(classes)})"
        raise InputError(what, "give both the same list of categories")
    part = path.stem.rpartition("_")[2]
    roots = (path.parent, path.parent / "images", path.parent.parent / "images", path.parent.parent / part)
    some = [image.name for image in found.images]
    root = max(roots, key=lambda folder: sum((folder / name).is_file() for name in some[:: max(1, len(some) // 32)]))
    return ObjectFolder(
        root,
        FileList.of(root, (root / image.name for image in found.images)),
        np.zeros(len(found.images), np.int64),
        found.classes,
        objects=tuple(image.objects for image in found.images),
        sides=tuple(image.sides for image in found.images),
        strays=found.strays,
        problems=("",) * len(found.images),
    )


def _voc(path: Path, classes: Sequence[str] | None) -> ObjectFolder:
    root, names = voc_root(path), voc_names(path)
    near = next((file for file in (root / NAMES, path.parent / NAMES) if file.is_file()), None)
    listed = [line.strip() for line in (lines_of(near) if near else ()) if line.strip()]
    if len(set(listed)) < len(listed):
        raise InputError(f"{near} names a class twice", "give each its own name")
    known = tuple(classes or listed)
    paths = [_picture(root / "JPEGImages" / name) for name in names]
    read: list[tuple[list[tuple[str, tuple[float, ...], bool]], tuple[int, int] | None] | str] = []
    for name in names:
        try:
            read.append(read_voc(root / "Annotations" / f"{name}.xml"))  # type: ignore[arg-type]
        except FileNotFoundError:
            read.append("its annotations are missing")
        except OSError as error:
            read.append(f"its annotations cannot be read ({error.strerror})")
        except ValueError as error:
            read.append(str(error))
    there = sorted({box[0] for one in read if not isinstance(one, str) for box in one[0]})
    if not known and not there:
        raise InputError(f"no image of {path} has an object", f"check Annotations, or name classes in {NAMES}")
    if known and (strange := set(there) - set(known)):
        raise UnknownClassError(path, min(strange))
    number = {name: i for i, name in enumerate(known or there)}
    objects = [
        None if isinstance(one, str) else
        Objects.of([box[1] for box in one[0]], [number[box[0]] for box in one[0]], [box[2] for box in one[0]])
        for one in read
    ]  # fmt: skip
    return ObjectFolder(
        root / "JPEGImages",
        FileList.of(root / "JPEGImages", paths),
        np.zeros(len(paths), np.int64),
        tuple(number),
        objects=tuple(objects),
        sides=tuple(None if isinstance(one, str) else one[1] for one in read),
        problems=tuple(one if isinstance(one, str) else "" for one in read),
    )


def _picture(path: Path) -> Path:
    """The file of an image, whose ending is not known."""
    files = (path.with_name(path.name + end) for end in SUFFIXES)
    return next((file for file in files if file.is_file()), path.with_name(f"{path.name}.jpg"))


@dataclass
class ObjectSource(ImageSource):
    """Images at one size, with the objects of each."""

    sides: np.ndarray | None = None  # (N, 2) height and width of images
    clipped: int = 0  # boxes that reached beyond their images
    boxes: tuple[Broken, ...] = ()  # those that were set aside

    @staticmethod
    def scan(
        folder: ObjectFolder,
        size: tuple[int, int],
        frame: Frame = "letterbox",
        max_broken: float = 0.05,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> ObjectSource:
        """Decode every image once and check its objects; what cannot be used is set aside with the reason.

        max_broken: share of images, and of boxes, above which the folder is refused.
        """
        number = {path: i for i, path in enumerate(folder.paths)}

        def decode(path: Path) -> tuple[np.ndarray, tuple[Objects, list[str], int, tuple[int, int]]]:
            checked = folder.check(number[path])
            return decode_image(path, size, frame), checked

        keep = len(folder) * size[0] * size[1] * 3 <= KEEP_BYTES
        pixels = np.empty((len(folder) if keep else 0, 3, *size), np.uint8)
        broken: list[Broken] = []
        boxes: list[Broken] = list(folder.strays)
        good: list[int] = []
        objects: list[Objects] = []
        sides: list[tuple[int, int]] = []
        clipped = 0
        for i, (image, (own, reasons, cut, shape)) in decode_all(folder, decode, broken, max_broken, progress):
            if keep:
                pixels[len(good)] = image
            good.append(i)
            objects.append(own)
            sides.append(shape)
            clipped += cut
            boxes += [Broken(folder.key(i), reason) for reason in reasons]
        total = sum(map(len, objects)) + len(boxes)
        if len(boxes) > max_broken * total:
            raise InputError(
                f"{len(boxes)} of {total} boxes in {folder.root} cannot be used "
                f"(first: {boxes[0].path}: {boxes[0].reason})",
                f"repair or remove them; at most {max_broken:.0%} may be broken",
            )
        if not any(map(len, objects)):
            raise InputError(f"no image of {folder.root} has an object", "check the annotations")
        chosen = replace(folder.take(np.array(good)), objects=tuple(objects))
        kept = pixels[: len(good)] if keep else None
        return ObjectSource(
            chosen, size, tuple(broken), frame=frame, _kept=kept, sides=np.array(sides), clipped=clipped,
            boxes=tuple(boxes),
        )  # fmt: skip

    def objects(self, index: np.ndarray) -> list[Objects]:
        """Of some images. index: (B,)."""
        folder = self.folder
        assert isinstance(folder, ObjectFolder)
        return [one for i in index.tolist() if (one := folder.objects[i]) is not None]

    def sides_of(self, index: np.ndarray) -> np.ndarray:
        """Height and width of some images, (B, 2)."""
        assert self.sides is not None
        return self.sides[index]


class StoredObjects:
    """The boxes of a store."""

    def __init__(self, store: Store) -> None:
        names = {column.name for column in store.manifest.columns}
        if not {COLUMN, SIDES} <= names:
            raise InputError(f"{store.path} has no boxes", "tokenize the images with --boxes")
        records, sides = store.column(COLUMN), store.column(SIDES)
        if not isinstance(records, RecordColumn) or not isinstance(sides, np.ndarray) or sides.shape[1:] != (2,):
            raise DamageError(f"the boxes of {store.path} are no records", "restore it")
        self.records, self.sides, self.classes, self.path = records, sides, len(store.classes), store.path

    def objects(self, index: np.ndarray) -> list[Objects]:
        """Of some images. index: (B,)."""
        return [unpack_objects(record, self.classes, str(self.path)) for record in self.records.take(index)]

    def sides_of(self, index: np.ndarray) -> np.ndarray:
        """Height and width of some images, (B, 2)."""
        return self.sides[index]


def pack_objects(objects: Objects) -> np.ndarray:
    """What a store keeps of an image's boxes, (M, 7) float32: edges, class, whether it is ignored, area."""
    parts = (objects.edges, objects.labels[:, None], objects.ignored[:, None], objects.areas[:, None])
    return np.concatenate(parts, 1).astype(np.float32)


def unpack_objects(record: np.ndarray, classes: int, name: str) -> Objects:
    """The reverse; refuses numbers that no image has."""
    labels = record[:, 4] if record.shape[1:] == (FIELDS,) else np.array([np.nan])
    if not np.isfinite(record).all() or not ((labels >= 0) & (labels < classes) & (labels % 1 == 0)).all():
        raise DamageError(f"a box of {name} is damaged, or names a class beyond its list", "restore it")
    return Objects(record[:, :4].astype(np.float32), labels.astype(np.int64), record[:, 5] > 0, record[:, 6])


class Detected(Around):
    """A data set whose batches carry the objects of their images, with where the input lies on them."""

    def __init__(self, source: Source, values: ObjectSource | StoredObjects, frame: str, outlines: bool) -> None:
        self.source, self.values, self.frame, self.outlines = source, values, frame, outlines

    def __len__(self) -> int:
        return len(self.source)

    def objects(self, index: np.ndarray) -> list[Objects]:
        """Of some images, as they are stored. index: (B,)."""
        return self.values.objects(index)

    def sides_of(self, index: np.ndarray) -> np.ndarray:
        """Height and width of some images, (B, 2)."""
        return self.values.sides_of(index)

    def batch(self, index: np.ndarray) -> Batch:
        """Samples with their objects in column 'boxes'. index: (B,) int64."""
        batch, objects = self.source.batch(index), self.objects(index)
        sides = torch.from_numpy(self.sides_of(index).astype(np.float32))
        layers = None
        if self.outlines:
            shapes = ((int(h), int(w)) for h, w in sides.tolist())
            layers = [one.layers(shape) for one, shape in zip(objects, shapes, strict=True)]
        column = Boxes.of(objects, sides, canvas_affine(sides, self.source.grid, self.frame), layers)
        return batch.changed(columns={**batch.columns, COLUMN: column})


@dataclass(frozen=True)
class ObjectValues:
    """Objects of the data at hand, wherever they lie."""

    stored: StoredObjects | None = None
    frame: str = ""  # how the images of a store were fitted
    outlines: bool = False

    def attach(self, source: Source, name: str) -> Detected:
        """The data with their objects."""
        if self.stored is not None:
            store = getattr(source, "store", None)
            if store is not None and store.views > 1:
                raise ConfigError("boxes of several views of an image are not known", "use a store of one view")
            if source.grid[0] == 1:
                raise ConfigError(f"the codes of {name} are sequences, without positions", "use a grid of codes")
            return Detected(source, self.stored, self.frame, self.outlines)
        images = source if isinstance(source, ObjectSource) else getattr(source, "images", None)
        if not isinstance(images, ObjectSource):
            raise ConfigError(f"boxes cannot follow the samples of {name}", "give a token store or annotated images")
        if self.outlines:
            _check_outlines(images, name)
        return Detected(source, images, images.frame, self.outlines)


def _check_outlines(images: ObjectSource, name: str) -> None:
    """Refuse objects without outlines, and so many on one another that their layers would fill the memory."""
    index = np.arange(len(images))
    every = images.objects(index)
    without = sum(len(one) - sum(shape is not None for shape in one.shapes) for one in every)
    if without:
        what = f"{without} of {sum(map(len, every))} objects of {name} have no outline"
        raise InputError(what, "give COCO annotations with segmentations, or use a recipe for boxes")
    for i, (one, (height, width)) in enumerate(zip(every, images.sides_of(index).tolist(), strict=True)):
        try:
            one.check_layers((height, width))
        except InputError as error:
            raise InputError(f"{images.folder.key(i)} of {name}: {error.what}", error.hint) from error


def _find(outlines: bool) -> Callable[[Location, str], ObjectValues]:
    def find(data: Location, directory: str) -> ObjectValues:
        """Objects of a store or beside images."""
        if isinstance(data, Url) or is_store(data):
            if outlines:
                raise ConfigError(f"{data} keeps boxes, not outlines", "train on the images, or use a recipe for boxes")
            store = Store(data)
            return ObjectValues(StoredObjects(store), store.manifest.frame)
        if annotations_of(data) is None:
            hint = "give a COCO file (.json), or a list of VOC (ImageSets/Main/train.txt)"
            raise ConfigError(f"the objective needs boxes, and {data} has none", hint)
        return ObjectValues(outlines=outlines)

    return find


def has_boxes(source: Source) -> bool:
    """Whether the only labels of a data set are boxes: images or a store of them."""
    inner = innermost(source)
    store = getattr(inner, "store", None)
    if store is not None:
        return COLUMN in (column.name for column in store.manifest.columns) and not inner.labels.any()
    return isinstance(inner, ObjectSource)


def boxes_set_aside(source: Source | None) -> tuple[Broken, ...]:
    """Boxes of a folder that cannot be used."""
    inner = None if source is None else innermost(source)
    return inner.boxes if isinstance(inner, ObjectSource) else ()


def clipped_boxes(source: Source | None) -> int:
    """Boxes of a folder that reached beyond their images."""
    inner = None if source is None else innermost(source)
    return inner.clipped if isinstance(inner, ObjectSource) else 0


column_kinds.add(COLUMN)(ColumnKind("boxes", _find(outlines=False)))
column_kinds.add(OUTLINES)(ColumnKind("instances", _find(outlines=True)))
