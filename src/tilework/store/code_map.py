"""Codes that a store keeps, and the numbers they get.

K codes of the tokenizer | K' codes of the store | C channels
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class CodeMap:
    """Map from the tokenizer's code numbers to those of the store."""

    used: np.ndarray  # (K',) the tokenizer's number of each code that is kept
    number: np.ndarray  # (K,) the store's number of each code of the tokenizer; the nearest kept one if it is not kept
    kept: np.ndarray  # (K,) whether a code is kept

    @staticmethod
    def of(used: np.ndarray, codebook: np.ndarray, found: np.ndarray | None = None) -> CodeMap:
        """The map that keeps some codes. codebook: (K, C) of the tokenizer; found: (K,) whether a code occurs."""
        kept = np.zeros(len(codebook), bool)
        kept[used] = True
        number = np.zeros(len(codebook), np.int32)
        number[used] = np.arange(len(used))
        table = codebook[used]
        for code in np.flatnonzero(~kept if found is None else ~kept & found).tolist():
            number[code] = np.square(table - codebook[code]).sum(1).argmin()
        return CodeMap(used.astype(np.int32), number, kept)
