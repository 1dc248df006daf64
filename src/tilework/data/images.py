"""Image folders: photographs with their classes, as pixel batches.

A file that cannot be decoded is quarantined with its reason; nothing is skipped silently.
B batch | H, W pixels
"""

from __future__ import annotations

import io
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Literal, Protocol, TypeVar

import numpy as np
import torch
from PIL import Image, ImageOps, features

from tilework.core.batch import Batch, Stage, Target
from tilework.core.codebook import Codebook
from tilework.core.errors import BrokenImagesError, InputError
from tilework.core.files import has_control
from tilework.data.file_list import FileList
from tilework.data.label_file import INSIDE, LabelFile
from tilework.data.label_file import SUFFIXES as LABEL_SUFFIXES
from tilework.data.labels import UNLABELLED
from tilework.store.manifest import Frame as Frame

T = TypeVar("T")
File = Path | BinaryIO  # of an image
GREY = (124, 116, 104)  # ImageNet's mean, beside an image that does not fill its size
Level = Literal["leaf", "top"]  # of nested class folders: those that hold images, or the first level
SUFFIXES: tuple[str, ...] = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
FORMATS: tuple[str, ...] = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")  # of GIF the first frame
if features.check("avif"):
    SUFFIXES, FORMATS = (*SUFFIXES, ".avif"), (*FORMATS, "AVIF")
if find_spec("pillow_heif"):
    import_module("pillow_heif").register_heif_opener()
    SUFFIXES, FORMATS = (*SUFFIXES, ".heic", ".heif"), (*FORMATS, "HEIF")
LARGEST = 100_000_000  # pixels; read from the header before anything is decoded
PARTS = {"train", "val", "valid", "validation", "test"}  # of a data set: folders of class folders
KEEP_BYTES = 1 << 30  # decoded folders up to this size stay in memory


@dataclass(frozen=True)
class Broken:
    """A file that was set aside, and why."""

    path: str
    reason: str


class ImageBytes(io.BytesIO):
    """The file of an image in memory; messages about it show its name."""

    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(data)
        self.name = name

    def __repr__(self) -> str:
        return repr(self.name.rpartition("/")[2])


class Images(Protocol):
    """Encoded images in a fixed order, with names and labels."""

    @property
    def labels(self) -> np.ndarray:
        """Class numbers, (N,) int64."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of their numbers."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The name of each image."""

    def __len__(self) -> int: ...

    def key(self, index: int) -> str:
        """The name of one image."""

    def files(self, index: Sequence[int]) -> Iterator[File]:
        """What Pillow opens, for some images, one at a time."""


@dataclass(frozen=True)
class ImageFolder:
    """Images below a directory, sorted, with their classes: by folder, by a label file, or none."""

    root: Path
    paths: FileList
    labels: np.ndarray  # (N,) int64
    classes: tuple[str, ...]
    skipped: Mapping[str, int] = field(default_factory=dict)  # files that are not images, by their endings
    remarks: tuple[str, ...] = ()  # what a user should know before anything runs

    @staticmethod
    def open(root: Path, classes: Sequence[str] | None = None, level: Level = "leaf") -> ImageFolder:
        """A folder of class folders, a label file, a folder with one, images without labels, or a single image.

        classes: number them so, and refuse others. level: of nested class folders, where `classes` does not tell it.
        """
        if root.is_file():
            return _open_file(root, classes)
        if not root.is_dir():
            raise InputError(f"no folder {root}", "give a folder with one sub-folder of images per class")
        found = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        if table := next((root / name for name in INSIDE if (root / name).is_file()), None):
            listed = ImageFolder.listed(root, table, classes)
            return replace(listed, remarks=(f"{root}: labels are those of {table.name}", *listed.remarks))
        if not found:
            return _open_flat(root, classes)
        if len(found) == 2 and (shared := _same_names(root, found)):
            what = f"the sub-folders of {root} hold the same names ('{shared}'), as images and masks do, not classes"
            raise InputError(what, "use a segmentation recipe such as seg_cpu, or rename them")
        if "train" in found and set(found) <= PARTS and any(entry.is_dir() for entry in (root / "train").iterdir()):
            raise InputError(f"{root} holds parts ({', '.join(found)}), not classes", f"give {root / 'train'}")
        return _open_classes(root, found, classes, level)

    @staticmethod
    def listed(root: Path | None, table: Path, classes: Sequence[str] | None = None) -> ImageFolder:
        """Images by a label file. root: their folder, if the file does not name it and they do not lie beside it."""
        known = LabelFile.read(table, root)
        paths = [_existing(known.root / row.path) for row in known.rows]
        first, header = known.rows[0], tuple[str, ...]()
        if paths[0] is None and any(paths) and Path(first.path).suffix.lower() not in SUFFIXES:
            header = (f"{table}: its first line ('{first.path}', '{first.label}') is taken for a header",)
            known, paths = replace(known, rows=known.rows[1:]), paths[1:]
        labels, names = known.numbers(classes)
        there = np.array([i for i, path in enumerate(paths) if path is not None], np.int64)
        absent = [row.path for row, path in zip(known.rows, paths, strict=True) if path is None]
        if not len(there):
            raise InputError(f"{table} names no image below {known.root} that exists", f"first: {absent[0]}")
        count = f"{len(absent)} of {len(paths)}"
        said = (f"{table}: {count} images do not exist and are left out (first: {absent[0]})",) if absent else ()
        kept = FileList.of(known.root, (path for path in paths if path is not None))
        return ImageFolder(known.root, kept, labels[there], names, {}, (*header, *said))

    @staticmethod
    def loose(paths: Sequence[Path]) -> ImageFolder:
        """Images by their own paths, without labels; of folders, everything below them."""
        found: list[Path] = []
        skipped: Counter[str] = Counter()
        for path in paths:
            if not path.exists():
                raise InputError(f"no such image: {path}", "give photographs, folders of them or a token store")
            files = list(_files(path)) if path.is_dir() else [path]
            images = [file for file in files if file.suffix.lower() in SUFFIXES]
            for file in images:
                _check_name(str(file))
            skipped.update(_kinds(file for file in files if file.suffix.lower() not in SUFFIXES))
            if not images:
                ends = f"files ending in {', '.join(SUFFIXES)} are read"
                raise InputError(f"{path} {'holds no images' if path.is_dir() else 'is not an image'}", ends)
            found += images
        found = list(dict.fromkeys(found))
        root = Path(os.path.commonpath([path.absolute().parent for path in found]))
        root = paths[0] if len(paths) == 1 and paths[0].is_dir() else root
        whole = (path if path.is_relative_to(root) else path.absolute() for path in found)
        return ImageFolder(root, FileList.of(root, whole), np.zeros(len(found), np.int64), (UNLABELLED,), dict(skipped))

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def keys(self) -> tuple[str, ...]:
        """The name of each image: its path below the root."""
        return tuple(map(self.key, range(len(self))))

    def key(self, index: int) -> str:
        """The name of one image."""
        return self.paths.name(index)

    def files(self, index: Sequence[int]) -> Iterator[Path]:
        """The files of some images."""
        return (self.paths[i] for i in index)

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(path.stat().st_size for path in self.paths)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks, and what was skipped by kind."""
        if not self.skipped:
            return self.remarks
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.skipped.items(), key=lambda x: -x[1])[:6])
        return (*self.remarks, f"{self.root}: {sum(self.skipped.values()):,} files are not images ({kinds}): skipped")

    def take(self, good: np.ndarray) -> ImageFolder:
        """The images at the positions given."""
        return replace(self, paths=self.paths.take(good), labels=self.labels[good])


def _open_file(path: Path, classes: Sequence[str] | None) -> ImageFolder:
    """A label file, or a single image."""
    if path.suffix.lower() in SUFFIXES:
        _refuse_unlabelled(path, classes)
        return replace(ImageFolder.loose([path]), remarks=(f"{path} is one image without a label",))
    if path.suffix.lower() in LABEL_SUFFIXES:
        return ImageFolder.listed(None, path, classes)
    raise InputError(f"{path} is a file", "give a folder with one sub-folder of images per class, or a label file")


def _open_flat(root: Path, classes: Sequence[str] | None) -> ImageFolder:
    """Images without labels."""
    if not any(path.suffix.lower() in SUFFIXES for path in _files(root)):
        raise InputError(f"{root} has no class folders", "give each class a sub-folder of its own")
    _refuse_unlabelled(root, classes)
    folder = ImageFolder.loose([root])
    return replace(folder, remarks=(f"{root}: {len(folder):,} images without labels (no class folders)",))


def _refuse_unlabelled(path: Path, classes: Sequence[str] | None) -> None:
    if classes is not None and UNLABELLED not in classes:
        hint = "give each class a sub-folder of its own, or a label file; 'tilework predict' needs no labels"
        raise InputError(f"{path} has no labels", hint)


def _open_classes(root: Path, tops: Sequence[str], classes: Sequence[str] | None, level: Level) -> ImageFolder:
    """Class folders; where they are nested, their first level or the folders that hold images."""
    for name in tops:
        _check_name(name)
    others: Counter[str] = Counter()
    number_of: dict[str, int] = {}  # of folders that hold images
    within = array("q")  # the folder of each image

    def names_of_images() -> Iterator[str]:
        start = len(str(root / "x")) - 1
        for path in chain.from_iterable(_walk(str(root / name)) for name in tops):
            if _ending(path) in SUFFIXES:
                within.append(number_of.setdefault(os.path.dirname(path), len(number_of)))
                yield path[start:]
            else:
                others.update(_kinds([Path(path)]))

    paths = FileList(root, names_of_images())
    if not paths:
        raise InputError(f"{root} holds no images", f"files ending in {', '.join(SUFFIXES)} are read")
    leaves = [_outermost(Path(folder), root, number_of.keys()) for folder in number_of]
    firsts = [Path(folder).relative_to(root).parts[0] for folder in number_of]
    full, depth = set(firsts), len(set(leaves))
    nested = depth > len(full)  # else every class has its images in one folder: no doubt
    remarks = []
    if classes is not None and nested:
        level = "top" if full <= set(classes) else "leaf"
    folders, found = (leaves, sorted(set(leaves))) if nested and level == "leaf" else (firsts, list(tops))
    if nested and classes is None:
        said = (f"{depth} folders that hold images", f"{len(full)} folders of the first level")
        chosen, other = said if level == "leaf" else said[::-1]
        remarks.append(f"{root}: nested folders; classes are the {chosen}, not the {other} (--classes leaf|top)")
    if empty := sorted(set(tops) - full):
        few = ", ".join(empty[:3]) + (", ..." if len(empty) > 3 else "")
        remarks.append(f"{root}: {len(empty)} class folders hold no images ({few})")
    names = tuple(found if classes is None else classes)
    if unknown := sorted(set(folders) - set(names)):
        raise InputError(f"{root} has a class '{unknown[0]}' that training does not know", "remove or rename it")
    number = {name: i for i, name in enumerate(names)}
    labels = np.array([number[name] for name in folders], np.int64)[np.array(within)]
    loose = [entry for entry in root.iterdir() if entry.is_file() and not entry.name.startswith(".")]
    skipped = others + Counter({"beside the class folders": len(loose)} if loose else {})
    return ImageFolder(root, paths, labels, names, dict(skipped), tuple(remarks))


def _outermost(folder: Path, root: Path, direct: Set[str]) -> str:
    """Name of the first folder on the way down that holds images itself; what lies deeper belongs to it."""
    parts = folder.relative_to(root).parts
    depth = next(i for i in range(1, len(parts) + 1) if str(root.joinpath(*parts[:i])) in direct)
    return "/".join(parts[:depth])


def _kinds(files: Iterable[Path]) -> Counter[str]:
    """How many files of each ending."""
    return Counter(file.suffix.lower() or "without ending" for file in files)


def _existing(path: Path) -> Path | None:
    """The file of an image, whose ending may be left out."""
    if path.is_file():
        return path
    if path.suffix.lower() in SUFFIXES:
        return None
    return next((other for end in SUFFIXES if (other := path.with_name(path.name + end)).is_file()), None)


def _same_names(root: Path, folders: Sequence[str]) -> str:
    """A name that files of both folders have, if all of the first have a partner in the second."""
    first, second = (
        {path.relative_to(root / name).with_suffix("") for path in _files(root / name)} for name in folders
    )
    return (
        min(map(str, first)) if first and first <= second and set(folders) & {"masks", "annotations", "labels"} else ""
    )


def _files(folder: Path) -> Iterator[Path]:
    return map(Path, _walk(str(folder)))


def _walk(folder: str) -> Iterator[str]:
    """Paths of the files below a folder, none hidden, sorted by their parts; as text, since a Path takes far longer."""
    with os.scandir(folder) as found:
        entries = sorted((entry for entry in found if not entry.name.startswith(".")), key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path)
        elif entry.is_file():
            if not entry.path.isprintable() and _ending(entry.path) in SUFFIXES:
                _check_name(entry.path)
            yield entry.path


def _check_name(path: str) -> None:
    """Refuse names that a label file cannot list, or that a terminal would obey."""
    if any("\ud800" <= letter <= "\udfff" for letter in path):  # bytes that are no letters
        raise InputError(f"a name is not UTF-8: {path!a}", "rename it")
    if has_control(path):
        raise InputError(f"a name has a control character: {path!r}", "rename it")


def _ending(file: str) -> str:
    return os.path.splitext(file)[1].lower()


def decode_image(path: File, size: tuple[int, int], frame: Frame = "cover") -> np.ndarray:
    """An image upright, in RGB, resized (bicubic). Returns (3, H, W) uint8.

    frame: cover: the short side is resized and the middle cut out; squash: each side is resized by itself; letterbox:
    the long side is resized, and the image lies at the upper left.
    """
    with open_image(path, size) as upright:
        fitted = fit_image(to_rgb(upright), size, frame)
    return np.ascontiguousarray(np.asarray(fitted).transpose(2, 0, 1))


def framing(size: tuple[int, int], frame: Frame) -> str:
    """What `decode_image` does, in words, but for the range of values."""
    height, width = size
    shape = "square" if height == width else f"part with sides {height}:{width}"
    how = {"cover": f"the largest {shape} in the middle resized", "squash": "squashed", "letterbox": "letterboxed"}
    return f"upright RGB, {how[frame]} (bicubic) to {height}x{width} px"


def fit_image(image: Image.Image, size: tuple[int, int], frame: Frame) -> Image.Image:
    """An image in RGB at a size (bicubic). size: height, width."""
    sides, cubic = (size[1], size[0]), Image.Resampling.BICUBIC
    if frame == "cover":
        return ImageOps.fit(image, sides, cubic)
    if frame == "squash":
        return image.resize(sides, cubic)
    step = max(image.width / size[1], image.height / size[0])
    canvas = Image.new("RGB", sides, GREY)
    canvas.paste(image.resize((max(1, round(image.width / step)), max(1, round(image.height / step))), cubic))
    return canvas


@contextmanager
def open_image(path: File, size: tuple[int, int] | None = None) -> Iterator[Image.Image]:
    """An image upright. size: what it will be cut to, if at once."""
    with open_stored(path) as image:
        if size is not None:
            image.draft("RGB", (2 * max(size), 2 * max(size)))  # the sides may change places below
        yield ImageOps.exif_transpose(image)


@contextmanager
def open_stored(path: File) -> Iterator[Image.Image]:
    """An image as it is stored, its number of pixels bounded before it is decoded."""
    with bounded_image(path) as image:
        yield image


def bounded_image(path: File) -> Image.Image:
    """The same, open for as long as it is used."""
    image = Image.open(path, formats=FORMATS)
    if image.width * image.height > LARGEST:
        image.close()
        raise ValueError(f"{image.width}x{image.height} pixels are more than {LARGEST}")
    return image


def to_rgb(image: Image.Image) -> Image.Image:
    """Any mode to RGB: 16-bit grey is scaled, transparency lies on white."""
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image, np.float32) / 257).round().clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


@dataclass
class ImageSource:
    """Pixels of a folder at one size, small folders decoded once and kept in memory."""

    folder: Images
    grid: tuple[int, int]  # H, W
    broken: tuple[Broken, ...] = ()
    stage: Stage = "pixels"
    together: int = 1
    codebook: Codebook | None = None
    frame: Frame = "cover"
    _kept: np.ndarray | None = field(default=None, repr=False)
    _pool: ThreadPoolExecutor | None = field(default=None, repr=False)

    @staticmethod
    def load(
        root: Path,
        size: tuple[int, int],
        classes: Sequence[str] | None = None,
        max_broken: float = 0.05,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> ImageSource:
        """`read` of a class folder."""
        return ImageSource.read(ImageFolder.open(root, classes), size, max_broken, progress)

    @staticmethod
    def read(
        folder: ImageFolder,
        size: tuple[int, int],
        max_broken: float = 0.05,
        progress: Callable[[int, int], None] = lambda done, total: None,
        frame: Frame = "cover",
    ) -> ImageSource:
        """Decode every file once, so that the number of good ones is known before training.

        max_broken: share of unreadable files above which the folder is refused.
        """
        keep = fits_memory(len(folder), size)
        pixels = np.empty((len(folder) if keep else 0, 3, *size), np.uint8)
        broken: list[Broken] = []
        good: list[int] = []
        for i, image in decode_all(folder, lambda path: decode_image(path, size, frame), broken, max_broken, progress):
            if keep:
                pixels[len(good)] = image
            good.append(i)
        return ImageSource(
            folder.take(np.array(good)), size, tuple(broken), frame=frame, _kept=pixels[: len(good)] if keep else None
        )

    @staticmethod
    def blank(folder: Images, size: tuple[int, int]) -> ImageSource:
        """The images of a folder without a look at them: all of them black."""
        return ImageSource(folder, size, _kept=np.broadcast_to(np.uint8(0), (len(folder), 3, *size)))

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of their numbers."""
        return self.folder.classes

    @property
    def labels(self) -> np.ndarray:
        """Class numbers, (N,)."""
        return self.folder.labels

    def __len__(self) -> int:
        return len(self.folder)

    def file(self, number: int) -> File:
        """Of one image."""
        return next(iter(self.folder.files([number])))

    def batch(self, index: np.ndarray) -> Batch:
        """x: (B, 3, H, W) uint8."""
        x = self._kept[index] if self._kept is not None else np.stack(self.each(self._decode, index))
        return Batch(
            torch.from_numpy(x),
            Target.hard(torch.from_numpy(self.folder.labels[index])),
            torch.from_numpy(np.asarray(index, np.int64)),
        )

    def each(self, do: Callable[[int], T], index: np.ndarray) -> list[T]:
        """Something done for each image by the decoding threads; each takes the next one until none is left."""
        self._pool, found = self._pool or ThreadPoolExecutor(_threads()), dict[int, T]()
        turns = iter(range(len(index)))  # shared: waiting once for a thread, not for an image, costs far less

        def work() -> None:
            for turn in turns:
                found[turn] = do(int(index[turn]))

        for thread in [self._pool.submit(work) for _ in range(_threads())]:
            thread.result()
        return [found[turn] for turn in range(len(index))]

    def _decode(self, number: int) -> np.ndarray:
        return decode_image(self.file(number), self.grid, self.frame)


def fits_memory(images: int, size: tuple[int, int]) -> bool:
    """Whether so many decoded images of a size stay in memory."""
    return images * size[0] * size[1] * 3 <= KEEP_BYTES


def decode_all(
    folder: ImageFolder,
    decode: Callable[[Path], T],
    broken: list[Broken],
    max_broken: float,
    progress: Callable[[int, int], None],
) -> Iterator[tuple[int, T]]:
    """The number of each good image and what is made of it; the others join `broken`, and too many are refused."""
    with ThreadPoolExecutor(_threads()) as pool:
        for i, image in enumerate(pool.map(lambda path: attempt(path, lambda: decode(path)), folder.paths)):
            if isinstance(image, str):
                broken.append(Broken(folder.key(i), image))
            else:
                yield i, image
            progress(i + 1, len(folder))
    if len(broken) == len(folder) or len(broken) > max_broken * len(folder):
        raise BrokenImagesError(
            f"{len(broken)} of {len(folder)} images in {folder.root} cannot be read "
            f"(first: {broken[0].path}: {broken[0].reason})",
            broken=len(broken),
            total=len(folder),
        )


def attempt(path: File | None, decode: Callable[[], T]) -> T | str:
    """What a decoder gives, or why it gives nothing. path: of which messages show the name alone."""
    try:
        return decode()
    except Exception as error:  # a damaged file can raise anything in a decoder: struct.error, SyntaxError, ...
        text = str(error).replace(str(path), path.name) if isinstance(path, Path) else str(error)
        return " ".join(text.split()) or type(error).__name__


def _threads() -> int:
    """One for each core that this process may use: more would only take the caches from each other."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(16, usable or 1)
