"""Images and their class masks: folders as CamVid, ADE20K and VOC have them, or a CSV file of pairs.

DIR/images + DIR/masks (or annotations)      equal names, whatever the endings
DIR/PART + DIR/PARTannot                     CamVid as SegNet's tutorial has it: give DIR/PART
DIR/images/PART + DIR/annotations/PART       ADE20K: give DIR/images/PART
DIR/ImageSets/Segmentation/PART.txt          VOC: names in DIR/JPEGImages and DIR/SegmentationClass
FILE.csv                                     columns image and mask, below the file's folder

Names of classes, one a line, in classes.txt, and dataset.json {"void": [11], "shift": -1} (numbers without a class;
what is added to a number to get its class) lie in the folder or in one of the two above it. 255 is always void.
N images | h, w pixels
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from PIL import Image

from tilework.core.errors import InputError
from tilework.data.class_mask import VOID
from tilework.data.file_list import FileList, lies_below
from tilework.data.image_files import SUFFIXES, bounded_image, open_stored, tiles
from tilework.data.image_folder import ImageFolder

NAMES, SETTINGS, ADE = "classes.txt", "dataset.json", "objectInfo150.txt"
MASKS = ("masks", "annotations", "labels")  # folders beside 'images'
LARGEST_NUMBER = (1 << 16) - 1
CAMVID = ("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist")
VOC = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable",
    "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip


@dataclass(frozen=True)
class Numbers:
    """What the numbers in mask files mean."""

    classes: tuple[str, ...]
    void: tuple[int, ...] = ()  # besides 255, before the shift
    shift: int = 0  # -1: class 0 is written as 1, and 0 is void (ADE20K)

    def read(self, mask: np.ndarray) -> np.ndarray:
        """Classes of a mask file, (h, w) uint8, void as 255; refuses numbers that stand for nothing."""
        table = np.full(max(256, int(mask.max(initial=0)) + 1), -2, np.int64)
        table[max(0, -self.shift) :][: len(self.classes)] = np.arange(len(self.classes))
        table[: max(0, -self.shift)] = VOID
        table[[VOID, *(number for number in self.void if number < len(table))]] = VOID
        found = table[mask]
        if (found < 0).any():
            number, first = int(mask[found < 0].max()), max(0, -self.shift)
            last = first + len(self.classes) - 1
            raise ValueError(
                f"class {number} of a mask, and the classes are {first} to {last}: name it in classes.txt, or "
                f'write {{"void": [{number}]}} into dataset.json'
            )
        return found.astype(np.uint8)


@dataclass(frozen=True)
class PairFolder(ImageFolder):
    """Images of a folder, each with the file of its mask; their classes are those of the masks."""

    masks: tuple[Path | None, ...] = ()  # None: there is none
    numbers: Numbers = field(default_factory=lambda: Numbers(()))

    def take(self, good: np.ndarray) -> PairFolder:
        """The images at the positions given."""
        masks = tuple(self.masks[i] for i in good)
        return replace(self, paths=self.paths.take(good), masks=masks, labels=self.labels[good])

    def read_mask(self, index: int, sides: tuple[int, int] | None = None) -> np.ndarray:
        """The mask of an image, (h, w) uint8, void as 255. sides: height and width that it must have."""
        path = self.masks[index]
        if path is None or not path.is_file():
            raise ValueError("it has no mask")
        with open_stored(path) as image:
            if image.mode not in ("L", "P", "1", "I", "I;16"):
                raise ValueError(f"its mask is a picture of mode {image.mode}, not of class numbers")
            image.load()  # which turns a TIFF, and its sides
            h, w = image.height, image.width
            if sides is not None and sides != (h, w):
                height, width = sides
                raise ValueError(f"its mask has {h}x{w} pixels, the image {height}x{width}")
            found = np.empty((h, w), np.uint8)
            for left, top, tile in tiles(image):
                mask = np.asarray(tile).astype(np.int64)
                if mask.min() < 0 or mask.max() > LARGEST_NUMBER:
                    raise ValueError(f"its mask has numbers beyond {LARGEST_NUMBER}")
                found[top : top + tile.height, left : left + tile.width] = self.numbers.read(mask)
        return found

    @property
    def mask_bytes(self) -> int:
        """Size of all files of masks."""
        return sum(path.stat().st_size for path in self.masks if path is not None)


def open_pairs(path: Path, classes: Sequence[str] | None = None) -> PairFolder | None:
    """Images and masks at a path; None where there are no masks. classes: refuse others."""
    found = _find(path)
    if found is None:
        return None
    root, pairs, unpaired, numbers = found
    if not pairs:
        raise InputError(f"{path} holds no images", f"files ending in {', '.join(SUFFIXES)} are read")
    if all(mask is None for _, mask in pairs):
        raise InputError(f"no image of {path} has a mask", "give masks the names of their images")
    if not 0 < len(numbers.classes) < VOID:
        raise InputError(f"{path} has masks of {len(numbers.classes)} classes", f"1 to {VOID - 1} can be told apart")
    if classes is not None and tuple(classes) != numbers.classes:
        what = f"{path} has masks of other classes than training ({len(numbers.classes)}, not {len(classes)})"
        if len(numbers.classes) == len(classes):
            other = next(new for new, old in zip(numbers.classes, classes, strict=True) if new != old)
            what = f"{path} has masks of other classes than training ('{other}')"
        raise InputError(what, f"give both the same {NAMES}")
    images, masks = zip(*pairs, strict=True)
    labels = np.zeros(len(images), np.int64)
    skipped = {"masks without an image": unpaired} if unpaired else {}
    return PairFolder(root, FileList.of(root, images), labels, numbers.classes, skipped, (), masks, numbers)


Found = tuple[Path, list[tuple[Path, Path | None]], int, Numbers]  # root, pairs, files without a partner, numbers


def _find(path: Path) -> Found | None:
    if path.suffix == ".csv" and path.is_file():
        return _listed(path)
    whole = path.absolute()  # '.' has neither a name nor folders above it
    if path.suffix == ".txt" and whole.parent.name == "Segmentation" and path.is_file():
        return _voc(path)
    if not path.is_dir():
        return None
    if (path / "SegmentationClass").is_dir() and (path / "JPEGImages").is_dir():
        lists = path / "ImageSets"
        give = f"give {lists / 'Segmentation/train.txt'} for masks, {lists / 'Main/train.txt'} for boxes"
        raise InputError(f"{path} holds all parts of VOC", give)
    for name in MASKS:
        if (path / "images").is_dir() and (path / name).is_dir():
            parts = sorted(entry.name for entry in (path / "images").iterdir() if entry.is_dir())
            if set(parts) >= {"training", "validation"}:
                raise InputError(f"{path} holds parts ({', '.join(parts)})", f"give {path / 'images' / parts[0]}")
            return _beside(path, path / "images", path / name, _describe(path))
    annotated = whole.parent.parent / "annotations" / whole.name
    if whole.parent.name == "images" and annotated.is_dir():
        return _beside(path, path, annotated, _describe(path))
    annotated = whole.parent / f"{whole.name}annot"
    if whole.name and annotated.is_dir():
        return _beside(path, path, annotated, _describe(path, Numbers(CAMVID, (len(CAMVID),))))
    return None


def _beside(root: Path, images: Path, masks: Path, numbers: Numbers) -> Found:
    """Files of two folders by their names without endings."""
    known = {str(path.relative_to(masks).with_suffix("")): path for path in _pictures(masks)}
    pairs: list[tuple[Path, Path | None]] = []
    for path in _pictures(images):
        pairs.append((path, known.pop(str(path.relative_to(images).with_suffix("")), None)))
    return root, pairs, len(known), numbers


def _pictures(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.rglob("*")):
        if entry.suffix.lower() in SUFFIXES and entry.is_file() and not entry.name.startswith("."):
            yield entry


def _voc(path: Path) -> Found:
    root, names = voc_root(path), voc_names(path)
    folders = (root / "JPEGImages", root / "SegmentationClass")
    pairs = [(folders[0] / f"{name}.jpg", folders[1] / f"{name}.png") for name in names]
    return folders[0], [(image, mask if mask.is_file() else None) for image, mask in pairs], 0, Numbers(VOC)


def voc_root(path: Path) -> Path:
    """The folder with all parts of VOC, three above a list of names in it; no higher than '/'."""
    return path.absolute().parent.parent.parent


def voc_names(path: Path) -> list[str]:
    """Names of images in a list of VOC."""
    names = [line.split()[0] for line in lines_of(path) if line.strip()]
    if strange := next((name for name in names if "/" in name or not lies_below(f"{name}.jpeg")), None):
        raise InputError(f"{path} has the name '{strange}'", "give names of images without folders")
    if not names:
        raise InputError(f"{path} names no images", "give one a line")
    return names


def _listed(path: Path) -> Found | None:
    """Pairs of a table; None where it is one of labels."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read", str(error)) from error
    if not rows or not {"image", "mask"} <= rows[0].keys():
        return None
    root, seen = path.parent, set()
    pairs: list[tuple[Path, Path | None]] = []
    for line, row in enumerate(rows, 2):
        for kind in ("image", "mask"):
            name = row[kind] or ""
            if (kind == "image" and name in seen) or not (lies_below(name) or (kind == "mask" and not name)):
                raise InputError(f"line {line} of {path} has the {kind} '{name}'", "each once, below the file's folder")
        seen.add(row["image"])
        pairs.append((root / row["image"], root / row["mask"] if row["mask"] else None))
    return root, pairs, 0, _describe(root)


def _describe(root: Path, known: Numbers | None = None) -> Numbers:
    """Names and numbers of classes as files in a folder, or above it, say; `known` where none does."""
    near = [root, *root.absolute().parents[:2]]
    numbers = known
    if names := _first(near, NAMES):
        numbers = replace(known or Numbers(()), classes=tuple(line.strip() for line in lines_of(names) if line.strip()))
    elif ade := _first(near, ADE):
        rows = [line.split("\t") for line in lines_of(ade)[1:] if line.strip()]
        numbers = Numbers(tuple(row[-1].split(",")[0].strip() for row in rows), (), -1)
    if numbers is None:
        hint = f'write the names of the classes, one a line, and {SETTINGS} {{"void": [...]}} where numbers have none'
        raise InputError(f"{root} holds masks, but no {NAMES} says what their numbers mean", hint)
    if len(set(numbers.classes)) < len(numbers.classes):
        raise InputError(f"{NAMES} of {root} names a class twice", "give each its own name")
    settings = _first(near, SETTINGS)
    if settings is None:
        return numbers
    try:
        plain = json.loads(settings.read_bytes())
        void, shift = plain.get("void", numbers.void), plain.get("shift", numbers.shift)
        if not isinstance(shift, int) or not -256 < shift <= 0 or not all(0 <= v <= LARGEST_NUMBER for v in void):
            raise ValueError(f"void {void}, shift {shift}")
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{settings} is malformed", f'write {{"void": [11], "shift": 0}} ({error})') from error
    return replace(numbers, void=tuple(map(int, void)), shift=shift)


def _first(folders: Sequence[Path], name: str) -> Path | None:
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def lines_of(path: Path) -> list[str]:
    """The lines of a text."""
    try:
        return path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read", str(error)) from error


def image_sides(path: Path) -> tuple[int, int]:
    """Height and width of an image upright, from its header."""
    with bounded_image(path) as image:
        width, height = image.size
        return (width, height) if image.getexif().get(0x0112, 1) in (5, 6, 7, 8) else (height, width)


def palette(classes: int) -> np.ndarray:
    """A colour for every class, (K, 3) uint8, far apart for the first ones; VOC's bits (Everingham et al., 2010)."""
    number = np.arange(1, classes + 1)
    colours = np.zeros((classes, 3), np.uint8)
    for bit in range(8):
        for channel in range(3):
            colours[:, channel] |= (((number >> 3 * bit + channel) & 1) << (7 - bit)).astype(np.uint8)
    return colours


def coloured(mask: np.ndarray, classes: int) -> np.ndarray:
    """A mask in colours, (h, w, 3) uint8; void is black."""
    table = np.zeros((256, 3), np.uint8)
    table[:classes] = palette(classes)
    table[VOID] = 0
    return table[mask]


def mask_png(mask: np.ndarray, classes: int) -> bytes:
    """A mask as a PNG file of class numbers, with colours for people as its palette."""
    image = Image.frombytes("P", (mask.shape[1], mask.shape[0]), mask.astype(np.uint8).tobytes())
    table = np.zeros((256, 3), np.uint8)
    table[:classes] = palette(classes)
    image.putpalette(table.tobytes())
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()
