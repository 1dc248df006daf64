"""Label files: which image has which class, as CSV or TSV, with or without a header, or as lines `PATH LABEL`.

Paths lie below the file's own folder, or below the one that a line `# root: FOLDER` names. A file `classes.txt` beside
it names the classes that numbers stand for.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilework.core.errors import InputError
from tilework.core.files import has_control
from tilework.data.file_list import lies_below

SUFFIXES = (".csv", ".tsv", ".txt")
INSIDE = ("labels.csv", "labels.tsv", "labels.txt")  # looked for in a folder of images without class folders
CLASSES = "classes.txt"
LARGEST = 1 << 30  # bytes
PATHS = ("path", "file", "filename", "file_name", "image", "image_id", "img", "id", "name")
LABELS = ("label", "class", "category", "target", "class_name", "class_id", "y")
ROOT = "# root:"
DIGITS = 640  # of a number; more are a name, since Python may refuse to count so far


@dataclass(frozen=True)
class Row:
    """A line of a label file."""

    line: int
    path: str
    label: str


@dataclass(frozen=True)
class LabelFile:
    """Paths and labels as they are written."""

    file: Path
    root: Path
    rows: tuple[Row, ...]

    @staticmethod
    def read(file: Path, root: Path | None = None) -> LabelFile:
        """root: the folder of the images, if the file does not name it."""
        try:
            if file.stat().st_size > LARGEST:
                raise InputError(f"{file} has more than {LARGEST} bytes", "split it")
            text = file.read_text("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InputError(f"{file} is not in UTF-8 (byte {error.start})", "save it as UTF-8") from error
        except OSError as error:
            raise InputError(f"{file} cannot be read", str(error)) from error
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        named = [line.removeprefix(ROOT).strip() for _, line in lines if line.startswith(ROOT)]
        lines = [(number, line) for number, line in lines if not line.startswith("#")]
        folder = file.parent / named[0] if named else root or file.parent
        if not os.path.isdir(folder):  # nor is a name that is too long
            raise InputError(f"{file} names images in {folder}, which is no folder", f"correct its line '{ROOT}'")
        return LabelFile(file, folder, _rows(file, lines))

    def numbers(self, classes: Sequence[str] | None = None) -> tuple[np.ndarray, tuple[str, ...]]:
        """Class number of each row, (N,) int64, and the classes. classes: number them so, and refuse others."""
        found = {row.label for row in self.rows}
        names = tuple(classes) if classes is not None else self._names()
        if names is None:
            whole = all(map(_is_number, found))
            names = tuple(sorted(found, key=lambda label: (int(label), label) if whole else (0, label)))
        number = {name: i for i, name in enumerate(names)}
        if not found <= number.keys() and all(_is_number(label) and int(label) < len(names) for label in found):
            number = {label: int(label) for label in found}
        for row in self.rows:
            if row.label not in number:
                what = f"line {row.line} of {self.file} has the label '{row.label}'"
                raise InputError(what, f"one of {len(names)} is needed" if classes is None else _unknown(names))
        return np.array([number[row.label] for row in self.rows], np.int64), names

    def _names(self) -> tuple[str, ...] | None:
        """Of `classes.txt`, a class per line, where it lies beside the file or the images."""
        for folder in dict.fromkeys((self.file.parent, self.root)):
            path = folder / CLASSES
            if path.is_file() and path != self.file:
                try:
                    names = tuple(line.strip() for line in path.read_text("utf-8-sig").splitlines() if line.strip())
                except (OSError, UnicodeDecodeError) as error:
                    raise InputError(f"{path} cannot be read", str(error)) from error
                if not names or len(set(names)) < len(names):
                    raise InputError(f"{path} has no class, or one twice", "give a name per line")
                return names
        return None


def _is_number(label: str) -> bool:
    return label.isdecimal() and len(label) <= DIGITS


def _unknown(names: Sequence[str]) -> str:
    few = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return f"training knows {len(names)}: {few}"


def _rows(file: Path, lines: Sequence[tuple[int, str]]) -> tuple[Row, ...]:
    if not lines:
        raise InputError(f"{file} has no rows with 'path' and 'label'", "write a line PATH,LABEL for each image")
    first = lines[0][1]
    mark = next((mark for mark in ("\t", ",", ";") if mark in first), None)
    try:
        cells = [line.strip().rsplit(None, 1) for _, line in lines] if mark is None else _split(file, lines, mark)
    except csv.Error as error:
        raise InputError(f"{file} cannot be read", str(error)) from error
    head = [cell.strip().lower() for cell in cells[0]]
    path, label = (next((head.index(name) for name in names if name in head), None) for names in (PATHS, LABELS))
    if path is not None and label is not None:
        cells, lines = cells[1:], lines[1:]
        if not cells:
            raise InputError(f"{file} has no rows with 'path' and 'label'", "write a line PATH,LABEL for each image")
    elif len(cells[0]) == 2:
        path, label = 0, 1
    else:
        raise InputError(f"{file} has no rows with 'path' and 'label'", "name the columns in its first line")
    rows: list[Row] = []
    seen: set[str] = set()
    for (number, _), cell in zip(lines, cells, strict=True):
        name, said = (cell[i] if i < len(cell) else "" for i in (path, label))
        if has_control(f"{name}{said}"):
            raise InputError(f"line {number} of {file} has a control character: '{name}', '{said}'", "remove it")
        if not said.strip():
            raise InputError(f"line {number} of {file} has the label ''", "each image needs one")
        if name in seen:
            raise InputError(f"line {number} of {file} lists '{name}' a second time", "keep one of the lines")
        if not lies_below(name):
            raise InputError(f"line {number} of {file} has the path '{name}'", "give paths below the folder")
        seen.add(name)
        rows.append(Row(number, name, said))
    return tuple(rows)


def _split(file: Path, lines: Sequence[tuple[int, str]], mark: str) -> list[list[str]]:
    """Cells without the blanks around them, but for those in quotes: a name may begin or end with one."""
    rows = []
    for number, line in lines:
        reader = csv.reader([line, ""], delimiter=mark, skipinitialspace=True)
        cells = next(reader)
        if reader.line_num > 1:
            what = f"line {number} of {file} has a quote that is not closed"
            raise InputError(what, "close it; no path and no label can hold a line break")
        rows.append(cells if '"' in line else [cell.strip() for cell in cells])
    return rows


def write_label_file(root: Path, file: Path, keys: Sequence[str], labels: Sequence[str]) -> str:
    """The text of a label file for images below a folder, whose place it names as seen from the file."""
    import io

    text = io.StringIO()
    text.write(f"{ROOT} {Path(os.path.relpath(root, file.parent)).as_posix()}\n")
    # a line that begins with # would be a comment, blanks around a name would be lost
    quote = any(name.startswith("#") or name != name.strip() for name in (*keys, *labels))
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL if quote else csv.QUOTE_MINIMAL)
    writer.writerow(("path", "label"))
    writer.writerows(zip(keys, labels, strict=True))
    return text.getvalue()
