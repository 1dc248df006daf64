"""What turns rows of codes into records and back.

B images | T tokens per image
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from tilework.core.registry import Registry


class Codec(Protocol):
    """Every image is a record of its own; any set of records decodes together."""

    def encode(self, ids: np.ndarray) -> tuple[bytes, np.ndarray]:
        """ids: (B, T) integers. Returns the records one after another, and their sizes (B,)."""

    def decode(self, data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """data: uint8; starts, sizes: (B,) places of the records in it. Returns (B, T) int32."""

    def tables(self) -> dict[str, np.ndarray]:
        """What `load` needs besides vocabulary and length; kept in the store."""


class CodecFamily(Protocol):
    """A class of codecs: fitted to a data set, or loaded from its tables."""

    def fit(self, ids: np.ndarray, vocabulary: int) -> Codec:
        """A codec for data like ids: (B, T)."""

    def load(self, tables: dict[str, np.ndarray], length: int, vocabulary: int) -> Codec:
        """The codec that wrote a store."""


codecs: Registry[CodecFamily] = Registry("codec")
