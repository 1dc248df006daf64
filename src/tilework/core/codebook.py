"""Codebooks: code vectors, their numbers in the tokenizer, and embeddings that training learnt for them.

K codes | C code dim | n synonyms of a code
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
from tilework.core.files import read_plain, write

FILE = "codebook.safetensors"
SAME = 1e-5  # relative distance up to which two vectors are the same code: devices round unit lengths differently
AT_ONCE = 1024  # codes compared with all others in one product


@dataclass(frozen=True, eq=False)
class Codebook:
    """The codebook of a store, a run or a tokenizer; arrays are never changed in place."""

    vectors: np.ndarray  # (K, C) float32; C is 0 if the vectors are unknown
    used: np.ndarray  # (K,) int32: number of each code in the tokenizer
    learnt: np.ndarray | None = None  # (K, C) float32: embeddings learnt in training, which replace the vectors
    synonyms: np.ndarray | None = None  # (K, n) int32: other codes, the nearest first, if the data came with them

    @staticmethod
    def of(vectors: np.ndarray, learnt: np.ndarray | None = None) -> Codebook:
        """The full codebook of a tokenizer. vectors: (K, C), array or tensor."""
        table = np.ascontiguousarray(vectors, np.float32)
        own = None if learnt is None else np.ascontiguousarray(learnt, np.float32)
        return Codebook(table, np.arange(len(table), dtype=np.int32), own)

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def code_dim(self) -> int:
        """Length of a code vector; 0 if the vectors are unknown."""
        return int(self.vectors.shape[1])

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the tokenizer's vectors."""
        return hashlib.sha256(np.ascontiguousarray(self.vectors).tobytes()).hexdigest()

    def table(self, standardise: bool = False) -> np.ndarray:
        """The embedding table that a model sees, (K, C): the learnt embeddings if there are any, else the vectors.

        standardise: scale every channel of the vectors to mean 0 and standard deviation 1 over the codes.
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
        """A copy with other learnt embeddings, (K, C), or none."""
        return replace(self, learnt=None if learnt is None else np.ascontiguousarray(learnt, np.float32))

    def positions_in(self, other: Codebook) -> np.ndarray | None:
        """Index of each code in another codebook, (K,) int64; None if any code is missing there."""
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
        """Learnt embeddings for the codes of another codebook, (K', C); None if there are none or a code is unknown."""
        positions = None if self.learnt is None else other.positions_in(self)
        return None if positions is None or self.learnt is None else self.learnt[positions]

    def nearest(self, count: int = 5) -> np.ndarray:
        """Synonyms of each code: those that the data came with, or the nearest codes by cosine similarity.

        Ties by code number. Returns (K, count) int32, with fewer columns if there are fewer codes.
        """
        if self.synonyms is not None and self.synonyms.shape[1] >= count:
            return self.synonyms[:, :count]
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
        """Write codebook.safetensors of a run or an exported model."""
        tensors = {"codebook": np.ascontiguousarray(self.vectors), "used": self.used}
        if self.learnt is not None:
            tensors["table"] = self.learnt
        if self.synonyms is not None:
            tensors["synonyms"] = self.synonyms
        write(directory / FILE, save(tensors))

    @staticmethod
    def read(directory: Path, expected: str) -> Codebook:
        """The codebook of a run or an exported model. expected: its digest."""
        file = directory / FILE
        try:
            tensors = load(read_plain(file))
            book = Codebook(tensors["codebook"], tensors["used"], tensors.get("table"), tensors.get("synonyms"))
        except (OSError, KeyError, SafetensorError) as error:
            raise DamageError(f"{file} cannot be read", f"restore it ({error})") from error
        if book.vectors.ndim != 2 or book.vectors.dtype != np.float32 or book.used.shape != book.vectors.shape[:1]:
            raise DamageError(f"{file} holds no codebook", "restore it from a copy")
        if book.learnt is not None and (book.learnt.shape != book.vectors.shape or not np.isfinite(book.learnt).all()):
            raise DamageError(f"the learnt embeddings in {file} do not fit its codebook", "restore it from a copy")
        if book.synonyms is not None and not are_synonyms(book.synonyms, len(book)):
            raise DamageError(f"{file} holds synonyms that do not fit its codebook", "restore it")
        if book.digest != expected:
            raise DamageError(f"{file} is not the codebook that the model was trained with", "restore it from a copy")
        return book


def are_synonyms(table: np.ndarray, codes: int) -> bool:
    """Whether a table names some other codes for each of so many."""
    if table.dtype != np.int32 or table.ndim != 2 or len(table) != codes or not table.size:
        return False
    return bool((table >= 0).all() and (table < codes).all() and (table != np.arange(codes)[:, None]).all())


def cut_synonyms(synonyms: np.ndarray, vectors: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Synonyms among the codes that are kept, by their new numbers; the nearest ones make up for those that are gone.

    synonyms: (K, n); vectors: (K, C); used: (K',) codes that are kept; returns (K', n), or fewer columns for few codes.
    """
    if len(used) == len(synonyms):
        return synonyms
    number = np.full(len(synonyms), -1, np.int32)
    number[used] = np.arange(len(used))
    near = Codebook.of(vectors[used]).nearest(synonyms.shape[1])
    rows = np.concatenate([number[synonyms[used]], near], 1).tolist()
    kept = [list(dict.fromkeys(code for code in row if code >= 0))[: near.shape[1]] for row in rows]
    return np.array(kept, np.int32).reshape(near.shape)


def same_codes(one: Codebook | None, other: Codebook | None) -> bool:
    """Whether two data sets have equal codebooks; None: pixels."""
    if one is None or other is None:
        return one is other
    return one.digest == other.digest


def _portions(index: np.ndarray) -> list[np.ndarray]:
    """Chunks of codes: all pairs of a large codebook would not fit into memory."""
    return np.split(index, range(AT_ONCE, len(index), AT_ONCE)) if len(index) else []
