"""A codebook: the vectors that codes stand for, which codes of the tokenizer they are, and what was learnt for them.

K codes | C code dim
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from tilework.core.errors import DamageError
from tilework.core.files import write

FILE = "codebook.safetensors"
SAME = 1e-5  # relative distance up to which two vectors are the same code: devices round unit lengths differently
AT_ONCE = 1024  # codes compared with all others in one product


@dataclass(frozen=True, eq=False)
class Codebook:
    """The codes of a store, a run or a tokenizer; arrays are never changed in place."""

    vectors: np.ndarray  # (K, C) float32; C is 0 where they are not known
    used: np.ndarray  # (K,) int32: the tokenizer's number of each code
    learnt: np.ndarray | None = None  # (K, C) float32: vectors that training put instead of the tokenizer's

    @staticmethod
    def of(vectors: np.ndarray, learnt: np.ndarray | None = None) -> Codebook:
        """All codes of a tokenizer. vectors: (K, C), an array or a tensor."""
        table = np.ascontiguousarray(vectors, np.float32)
        own = None if learnt is None else np.ascontiguousarray(learnt, np.float32)
        return Codebook(table, np.arange(len(table), dtype=np.int32), own)

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def code_dim(self) -> int:
        """Length of a code vector; 0 where the vectors are not known."""
        return int(self.vectors.shape[1])

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the tokenizer's vectors."""
        return hashlib.sha256(np.ascontiguousarray(self.vectors).tobytes()).hexdigest()

    def table(self, standardise: bool = False) -> np.ndarray:
        """The vectors that a model sees, (K, C): the learnt ones as they are; else the tokenizer's.

        standardise: every channel of the tokenizer's to mean 0 and deviation 1 over the codes.
        """
        if self.learnt is not None or not standardise:
            return self.vectors if self.learnt is None else self.learnt
        wide = self.vectors.astype(np.float64)
        return ((wide - wide.mean(0)) / np.maximum(wide.std(0), 1e-6)).astype(np.float32)

    def deviation(self, standardise: bool = False) -> float:
        """Of the channels of `table` over the codes, each about its own mean."""
        wide = self.table(standardise).astype(np.float64)
        return float(np.sqrt(wide.var(0).mean()))

    def with_learnt(self, learnt: np.ndarray | None) -> Codebook:
        """The same codes with other learnt vectors, (K, C), or with none."""
        return replace(self, learnt=None if learnt is None else np.ascontiguousarray(learnt, np.float32))

    def positions_in(self, other: Codebook) -> np.ndarray | None:
        """Where each code stands in another codebook, (K,) int64; None if some code is not there."""
        if not len(self) or self.code_dim != other.code_dim or not self.code_dim:
            return None
        exact = {row.tobytes(): number for number, row in reversed(list(enumerate(other.vectors)))}
        found = np.array([exact.get(row.tobytes(), -1) for row in self.vectors], np.int64)
        known = other.vectors.astype(np.float64)
        for part in _portions(np.flatnonzero(found < 0)):
            near = known @ self.vectors[part].T.astype(np.float64) - np.square(known).sum(1, keepdims=True) / 2
            best = near.argmax(0)
            apart = np.linalg.norm(self.vectors[part] - other.vectors[best], axis=1)
            if not (apart <= SAME * np.linalg.norm(self.vectors[part], axis=1)).all():
                return None
            found[part] = best
        return found

    def learnt_for(self, other: Codebook) -> np.ndarray | None:
        """The learnt vectors of another one's codes, (K', C); None where nothing was learnt, or for other codes."""
        positions = None if self.learnt is None else other.positions_in(self)
        return None if positions is None or self.learnt is None else self.learnt[positions]

    def nearest(self, count: int = 5) -> np.ndarray:
        """Other codes by falling cosine of their vectors, the lower number first among equals.

        Returns (K, count) int32, fewer columns where there are not so many codes.
        """
        unit = self.vectors / np.maximum(np.linalg.norm(self.vectors, axis=1, keepdims=True), 1e-12)
        count = min(count, len(unit) - 1)
        found = np.empty((len(unit), count), np.int32)
        for part in _portions(np.arange(len(unit))) if count else ():
            near = unit[part] @ unit.T
            near[np.arange(len(part)), part] = -np.inf
            least = np.partition(near, -count, axis=1)[:, -count]  # the lowest cosine that is still among them
            rows, codes = np.nonzero(near >= least[:, None])  # a few more than count where some tie for the last one
            order = np.lexsort((codes, -near[rows, codes], rows))
            rank = np.arange(len(rows)) - np.searchsorted(rows, rows)  # within each row, after sorting
            found[part] = codes[order][rank < count].reshape(len(part), count)
        return found

    def write(self, directory: Path) -> None:
        """Write the file of a run or an exported model."""
        tensors = {"codebook": np.ascontiguousarray(self.vectors), "used": self.used}
        if self.learnt is not None:
            tensors["table"] = self.learnt
        write(directory / FILE, save(tensors))

    @staticmethod
    def read(directory: Path, expected: str) -> Codebook:
        """The codebook of a run or an exported model. expected: its digest."""
        file = directory / FILE
        try:
            tensors = load(file.read_bytes())
            book = Codebook(tensors["codebook"], tensors["used"], tensors.get("table"))
        except (OSError, KeyError, SafetensorError) as error:
            raise DamageError(f"{file} cannot be read", f"restore it ({error})") from error
        if book.vectors.ndim != 2 or book.vectors.dtype != np.float32 or book.used.shape != book.vectors.shape[:1]:
            raise DamageError(f"{file} holds no codebook", "restore it")
        if book.learnt is not None and (book.learnt.shape != book.vectors.shape or not np.isfinite(book.learnt).all()):
            raise DamageError(f"{file} holds a table that does not fit its codebook", "restore it")
        if book.digest != expected:
            raise DamageError(f"{file} is not the codebook that the model was trained with", "restore it")
        return book


def same_codes(one: Codebook | None, other: Codebook | None) -> bool:
    """Whether two data sets have the same codes under the same numbers; pixels have none."""
    if one is None or other is None:
        return one is other
    return one.digest == other.digest


def _portions(index: np.ndarray) -> list[np.ndarray]:
    """Codes in portions: a large vocabulary has no room for all pairs at once."""
    return np.split(index, range(AT_ONCE, len(index), AT_ONCE)) if len(index) else []
