"""Streams of positions with several codes: codec `rans-stack`.

B streams | P positions | G kinds of codes | X tables | A symbols of a table
"""

from __future__ import annotations

import numpy as np

from tilework.core.compiled import jit
from tilework.store.kernels.context import take
from tilework.store.kernels.streams import FOUR, LOW, U32, first_state


@jit
def decode_stack(
    data: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
    tables: np.ndarray,
    coarse: np.ndarray,
    firsts: np.ndarray,
    order: np.ndarray,
    common: np.ndarray,
    precision: int,
    out: np.ndarray,
) -> int:
    """out: (B, P, G). tables: (1 + G, A) table by the symbol that the extent or the kind had at the position before."""
    count, positions, kinds = out.shape
    shift = U32(precision)
    before = np.empty(kinds, np.int32)
    for i in range(count):
        at = np.uintp(starts[i])
        end = at + np.uintp(sizes[i])
        x = first_state(data, at)
        at += FOUR
        extent = 0
        before[:] = common
        for p in range(positions):
            x, at, extent = take(data, x, at, end, tables[0, extent], coarse, firsts, shift)
            for g in range(extent):
                x, at, symbol = take(data, x, at, end, tables[g + 1, before[g]], coarse, firsts, shift)
                before[g] = symbol
            for g in range(extent, kinds):
                before[g] = common[g]
            for g in range(kinds):
                out[i, p, order[g]] = before[g]
        if x != LOW or at != end:
            return i
    return -1
