"""Whether training and validation data share images: by size and hash of files, or by the codes of stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from os import SEEK_END
from pathlib import Path

import numpy as np

from tilework.data.image_folder import ImageFolder
from tilework.data.images import ImageSource
from tilework.data.source import Source

LOOKS = 2000  # validation samples that are looked at, spread evenly
ENCODED = 32  # the same where each must be encoded first
PART = 1 << 16  # bytes of a file that are hashed, at its beginning, middle and end
MOST = 50_000  # training images: more are not looked through


def shared_images(train: Source, val: Source, looks: int = LOOKS) -> tuple[int, int]:
    """Validation samples that training data hold too, and how many were looked at; (0, 0) where it cannot be told."""
    if isinstance(train, ImageSource) and isinstance(val, ImageSource):
        mine, yours = train.folder, val.folder
        if len(train) > MOST or not (isinstance(mine, ImageFolder) and isinstance(yours, ImageFolder)):
            return 0, 0
        return _shared_files(mine.paths, yours.paths)
    if (train.stage, train.grid) == (val.stage, val.grid) and train.stage != "pixels" and len(train) <= MOST:
        return _shared_codes(train, val, looks)
    return 0, 0


def _shared_files(train: Sequence[Path], val: Sequence[Path]) -> tuple[int, int]:
    some = [val[i] for i in _spread(len(val))]
    sizes = {path: path.stat().st_size for path in some}
    wanted = set(sizes.values())
    known = {_hash(path) for path in train if path.stat().st_size in wanted}
    return sum(_hash(path) in known for path in some), len(some)


def same_files(paths: Sequence[Path]) -> np.ndarray:
    """The number of the first file that each one equals, (N,)."""
    sizes = [path.stat().st_size for path in paths]
    count, first = Counter(sizes), dict[bytes, int]()
    return np.array([first.setdefault(_hash(paths[i]), i) if count[sizes[i]] > 1 else i for i in range(len(paths))])


def _hash(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, SEEK_END)
        found = sha256(str(size).encode())
        for start in sorted({0, max(0, (size - PART) // 2), max(0, size - PART)}):
            file.seek(start)
            found.update(file.read(PART))
    return found.digest()


def _shared_codes(train: Source, val: Source, looks: int) -> tuple[int, int]:
    known: set[bytes] = set()
    for start in range(0, len(train), 4096):
        known |= set(_codes(train, np.arange(start, min(start + 4096, len(train)))))
    some = _spread(len(val), looks)
    return sum(code in known for code in _codes(val, some)), len(some)


def _codes(source: Source, index: np.ndarray) -> list[bytes]:
    """Codes of samples in the tokenizer's numbers."""
    assert source.codebook is not None
    return [source.codebook.used[ids].tobytes() for ids in source.batch(index).x.numpy()]


def _spread(count: int, looks: int = LOOKS) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(looks, count)).astype(np.int64))
