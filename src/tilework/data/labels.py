"""Labels of other people's data: numbers, names or none, made the numbers of classes.

N images
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from tilework.core.errors import InputError, UnknownClassError

Label = int | str | None
MOST_CLASSES = 1 << 20
UNLABELLED = "unlabelled"  # the one class of data without labels


def label_of_json(data: bytes) -> Label:
    """What a JSON object says under "label"."""
    value = json.loads(data)
    label = value.get("label") if isinstance(value, dict) else None
    if isinstance(label, bool) or not isinstance(label, int | str | None):
        raise ValueError(f"a label of type {type(label).__name__}")
    return label


def check_names(where: str, names: Sequence[str]) -> None:
    """Refuse names of classes with half a character (surrogates), which JSON can hold and UTF-8 cannot."""
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{where} has the class '{name}', which no file can hold", "rename it") from error


def number_labels(
    where: str, found: Sequence[Label], names: Sequence[str] | None = None, classes: Sequence[str] | None = None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Class number of each label, (N,) int64, and the classes.

    names: of the classes that numbers stand for, where they are known; classes: number them so, and refuse others.
    """
    kinds = {type(label) for label in found}
    if len(kinds) > 1:
        raise InputError(f"{where} mixes numbers, names and missing labels", "give all images labels of one kind")
    if kinds == {str}:
        names = sorted(set(map(str, found)))
        number = {name: i for i, name in enumerate(names)}
        numbers = np.array([number[str(label)] for label in found], np.int64)
    elif kinds == {int}:
        low, high = min(found), max(found)  # type: ignore[type-var]
        most = MOST_CLASSES if names is None and classes is None else len(names or classes or ())
        if not 0 <= low <= high < most:  # type: ignore[operator]
            raise InputError(f"labels {low}..{high} in {where}", f"numbers from 0 to {most - 1} are needed")
        numbers = np.array(found, np.int64)
        names = names or classes or [str(i) for i in range(int(numbers.max()) + 1)]
    else:
        numbers, names = np.zeros(len(found), np.int64), [UNLABELLED]
    check_names(where, names)
    if classes is None or tuple(names) == tuple(classes):
        return numbers, tuple(names)
    known = {name: i for i, name in enumerate(classes)}
    used = np.unique(numbers).tolist()
    if unknown := [names[i] for i in used if names[i] not in known]:
        raise UnknownClassError(where, unknown[0])
    return np.array([known.get(name, 0) for name in names])[numbers], tuple(classes)
