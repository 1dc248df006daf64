"""Names of classes for people, where folders have others: WordNet ids (n01440764), numbers, short forms."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence, Set
from pathlib import Path

from tilework.core.errors import InputError

LARGEST = 1 << 24  # bytes
ENDS = (r"[,;\t]", r"\s")  # of a class, in a line CLASS,NAME or CLASS NAME


def shown_names(classes: Sequence[str], file: Path | None) -> tuple[str, ...]:
    """The name of each class by a file with lines `CLASS NAME`, `CLASS,NAME`; without one, or not in it: its own.

    Of several names with commas between them (ImageNet: tench, Tinca tinca) the first counts. Where two classes have
    one name (ImageNet's cranes), each is followed by its class.
    """
    if file is None:
        return tuple(classes)
    known = _read(file, set(classes))
    if not known:
        raise InputError(f"{file} names none of the {len(classes)} classes", f"write lines {classes[0]},NAME")
    names = [known.get(one, one) for one in classes]
    often = Counter(names)
    return tuple(name if often[name] == 1 else f"{name} ({one})" for one, name in zip(classes, names, strict=True))


def _read(file: Path, classes: Set[str]) -> dict[str, str]:
    """Names of those classes that the file has."""
    try:
        if file.stat().st_size > LARGEST:
            raise InputError(f"{file} has more than {LARGEST} bytes", "give a list of classes")
        lines = file.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read", str(error)) from error
    known: dict[str, str] = {}
    for line in lines:
        for end in ENDS:
            one, *rest = (part.strip().strip('"') for part in re.split(end, line.strip(), maxsplit=1))
            name = rest[0].split(",")[0].strip().strip('"') if rest else ""
            if name and one in classes:
                known[one] = name
                break
    return known
