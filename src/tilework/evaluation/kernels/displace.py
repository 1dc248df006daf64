"""Pixels displaced one after another, for glass blur.

B batch | H, W pixels | n pixels that are visited in a round
"""

from __future__ import annotations

import numpy as np

from tilework.core.compiled import jit


@jit
def displace(x: np.ndarray, moves: np.ndarray, reach: int) -> int:
    """Glass blur's sequence, in place. x: (B, 3, H, W) uint8; moves: (B, rounds, n), as they are drawn."""
    height, width = x.shape[2], x.shape[3]
    for image in range(len(x)):
        for turn in range(moves.shape[1]):
            visit = 0
            for row in range(height - reach, reach, -1):
                for column in range(width - reach, reach, -1):
                    move = moves[image, turn, visit]
                    visit += 1
                    down, right = row + move // (2 * reach) - reach, column + move % (2 * reach) - reach
                    for channel in range(3):
                        x[image, channel, row, column] = x[image, channel, down, right]
    return -1


def check() -> None:
    """Raise if this machine does not compile or compute as it should."""
    x = np.arange(48, dtype=np.uint8).reshape(1, 3, 4, 4)
    displace(x, np.zeros((1, 1, 4), np.int32), 1)  # each takes the pixel above and to the left
    if x[0, 0].ravel().tolist() != [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 5, 6, 12, 13, 9, 10]:
        raise RuntimeError("a compiled kernel gave a wrong result")
