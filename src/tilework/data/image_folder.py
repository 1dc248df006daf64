"""Images below a directory, with their classes: by folder, by a label file, or none."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from tilework.core.console import counted
from tilework.core.errors import InputError, UnknownClassError
from tilework.core.files import has_control
from tilework.data.file_list import FileList
from tilework.data.image_files import SUFFIXES, File
from tilework.data.label_file import INSIDE, LabelFile
from tilework.data.label_file import SUFFIXES as LABEL_SUFFIXES
from tilework.data.labels import UNLABELLED

Level = Literal["leaf", "top"]  # of nested class folders: those that hold images, or the first level
PARTS = {"train", "val", "valid", "validation", "test"}  # of a data set: folders of class folders


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
    folders, found = (leaves, sorted(set(leaves))) if nested and level == "leaf" else (firsts, sorted(full))
    if nested and classes is None:
        said = (f"{depth} folders that hold images", f"{len(full)} folders of the first level")
        chosen, other = said if level == "leaf" else said[::-1]
        remarks.append(f"{root}: nested folders; classes are the {chosen}, not the {other} (--classes leaf|top)")
    if empty := sorted(set(tops) - full):
        few = ", ".join(empty[:3]) + (", ..." if len(empty) > 3 else "")
        none = "" if classes is not None else " is no class" if len(empty) == 1 else " are no classes"
        remarks.append(f"{root}: {counted(len(empty), 'class folder')} without images{none} ({few})")
    names = tuple(found if classes is None else classes)
    if unknown := sorted(set(folders) - set(names)):
        raise UnknownClassError(root, unknown[0])
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
    """The file of an image, whose ending may be left out; names that are too long are no file's."""
    if os.path.isfile(path):
        return path
    if path.suffix.lower() in SUFFIXES:
        return None
    return next((other for end in SUFFIXES if os.path.isfile(other := path.with_name(path.name + end))), None)


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
