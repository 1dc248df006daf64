"""Codecs: rows of codes to records of bytes, and back.

B images | T tokens per image
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from tilework.core.errors import InputError
from tilework.core.registry import Registry


def check_codes(ids: np.ndarray, vocabulary: int, first: int = 0) -> None:
    """Raise for a code outside the vocabulary, with its position. ids: (B, T); first: number of the first image."""
    bad = np.argwhere((ids < 0) | (ids >= vocabulary))
    if len(bad):
        image, position = bad[0].tolist()
        raise InputError(
            f"code {ids[image, position]} (position {position}, image {first + image}) is outside 0..{vocabulary - 1}",
            "check the tokenizer",
        )


class Codec(Protocol):
    """Codes one record per image; any set of records decodes in one call."""

    def encode(self, ids: np.ndarray) -> tuple[bytes, np.ndarray]:
        """ids: (B, T) integers. Returns the records one after another, and their sizes (B,)."""

    def decode(self, data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """data: uint8; starts, sizes: (B,) positions of the records in it. Returns (B, T) int32."""

    def tables(self) -> dict[str, np.ndarray]:
        """Tables that `load` needs, which are kept in the store."""


@runtime_checkable
class Chained(Protocol):
    """A codec whose records come in blocks, each told by those before it in its block."""

    @property
    def block(self) -> int:
        """Records of a block; blocks begin at multiples of it. It divides 16."""

    def decode(self, data: np.ndarray, starts: np.ndarray, sizes: np.ndarray, chain: np.ndarray) -> np.ndarray:
        """chain: (B,) place of each record in its block; records before it stand before it."""


class CodecFamily(Protocol):
    """A class of codecs: fitted to a data set, or loaded from its tables."""

    def fit(self, ids: np.ndarray, vocabulary: int, columns: int) -> Codec:
        """A codec for data like ids: (B, T), rows of `columns` codes."""

    def load(self, tables: dict[str, np.ndarray], length: int, vocabulary: int, columns: int) -> Codec:
        """The codec that wrote a store."""


KERNELS = "tilework.store.kernels"  # compiled code of codecs and checksums
codecs: Registry[CodecFamily] = Registry("codec")
